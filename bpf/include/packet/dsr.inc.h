/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Direct server return of one address family. */

#undef DSR_OPTION_TYPE
#define DSR_OPTION_TYPE AF_FN(DSR_OPTION)

/* The packet must carry the service's address: of TCP, only a SYN or a packet whose backend was
 * selected anew.
 */
static __always_inline int AF_FN(dsr_needs_option)(const scratch_t *scratch)
{
	if (options.packet.dsr == DSR_IPIP)
		return 1;
	return scratch->packet.proto != IPPROTO_TCP || tcp_opens(scratch->packet.tcp_flags) ||
	       scratch->translation.anew;
}

/* Growth of packets that carry the service's address. */
static __always_inline __u32 AF_FN(dsr_growth)(void)
{
	return options.packet.dsr == DSR_IPIP ? sizeof(ip_t) : sizeof(dsr_option_t);
}

/* L3 length after growth, of a segment with GSO. */
static __always_inline __u32 AF_FN(dsr_length)(CTX *ctx, const packet_t *packet)
{
	__u32 length = packet_length(ctx) - L3;

#ifndef PACKET_XDP
	/* TCP segments shrink as the packet grows. */
	if (ctx->gso_size && packet->proto == IPPROTO_TCP)
		return 1;
	if (ctx->gso_size)
		length = packet->l4 - L3 + sizeof(struct udp) + ctx->gso_size;
#else
	(void)packet;
#endif
	length += AF_FN(dsr_growth)();
	return length < 0xffff ? length : 0xffff;
}

/* Inserts room after the network header. Returns 0, or less. */
static __always_inline long AF_FN(dsr_room)(CTX *ctx, __u32 size)
{
#ifdef PACKET_XDP
	ip_t ip, *from, *to;
	struct ethernet *ethernet;

	if (bpf_xdp_adjust_head(ctx, -(int)size))
		return -1;
	from = packet_bytes(ctx, size + L3, sizeof(ip));
	if (!from)
		return -1;
	ip = *from;
	ethernet = packet_bytes(ctx, 0, L3 + sizeof(ip));
	if (!ethernet)
		return -1;
	ethernet->type = AF == 4 ? bpf_htons(ETH_P_IP) : bpf_htons(ETH_P_IPV6);
	to = (void *)ethernet + L3;
	*to = ip;
	return 0;
#else
	return bpf_skb_adjust_room(ctx, size, BPF_ADJ_ROOM_NET, BPF_F_ADJ_ROOM_FIXED_GSO);
#endif
}

#if AF == 4
/* Inserts the service's address into a packet to a backend. Returns a drop reason, or 0. */
static __noinline int dsr_encode4(CTX *ctx, struct scratch4 *scratch)
{
	struct dsr_option4 option = {
		.type = DSR_OPTION4,
		.length = sizeof(option),
		.port = bpf_ntohs(scratch->key.dport),
		.address = bpf_ntohl(scratch->key.address),
	};
	struct packet4 *packet = &scratch->packet;
	__u32 *words = (__u32 *)&option, before;
	struct ip4 *ip;

	/* 15 words of header at most. */
	if (packet->l4 + sizeof(option) > L3 + 60)
		return DROP_INVALID;
	if (dsr_room4(ctx, sizeof(option)))
		return DROP_WRITE;
	ip = packet_bytes(ctx, L3, sizeof(*ip) + sizeof(option));
	if (!ip)
		return DROP_WRITE;
	before = *(__u32 *)ip;
	ip->version_ihl += sizeof(option) / 4;
	ip->length = bpf_htons(bpf_ntohs(ip->length) + sizeof(option));
	ip->checksum = checksum_replace(ip->checksum, before, *(__u32 *)ip);
	ip->checksum = checksum_add(ip->checksum, words[0]);
	ip->checksum = checksum_add(ip->checksum, words[1]);
	*(struct dsr_option4 *)(ip + 1) = option;
	packet->l4 += sizeof(option);
	return 0;
}

/* Decodes the service's address. Returns 0 if there is none. */
static __always_inline int dsr_decode4(CTX *ctx, const struct packet4 *packet,
				       struct translation *service)
{
	struct dsr_option4 option;

	if (packet->l4 < L3 + sizeof(struct ip4) + sizeof(option) ||
	    packet_load(ctx, L3 + sizeof(struct ip4), &option, sizeof(option)) ||
	    option.type != DSR_OPTION4 || option.length != sizeof(option))
		return 0;
	__builtin_memset(service, 0, sizeof(*service));
	ct_address4(service->address, bpf_htonl(option.address));
	service->port = bpf_htons(option.port);
	return 1;
}
#else
static __noinline int dsr_encode6(CTX *ctx, struct scratch6 *scratch)
{
	struct dsr_option6 option = {
		.header_length = sizeof(option) / 8 - 1,
		.type = DSR_OPTION6,
		.length = sizeof(option) - 4,
		.port = scratch->key.dport,
	};
	struct packet6 *packet = &scratch->packet;
	struct {
		__be16 length;
		__u8 proto;
		__u8 hop_limit;
	} header;
	const __u32 at = L3 + __builtin_offsetof(struct ip6, length);

	copy6(option.address, scratch->key.address);
	if (packet_load(ctx, at, &header, sizeof(header)))
		return DROP_WRITE;
	/* They must be the first header (RFC 8200 4.1). */
	if (header.proto == IPPROTO_HOPOPTS)
		return DROP_EXTENSION_HEADER;
	if (dsr_room6(ctx, sizeof(option)))
		return DROP_WRITE;
	option.proto = header.proto;
	header.proto = IPPROTO_DSTOPTS;
	header.length = bpf_htons(bpf_ntohs(header.length) + sizeof(option));
#ifdef PACKET_XDP
	if (packet_store(ctx, at, &header, sizeof(header)) ||
	    packet_store(ctx, L3 + sizeof(struct ip6), &option, sizeof(option)))
		return DROP_WRITE;
#else
	/* No checksum of the packet covers these, but one that the interface made may. */
	if (bpf_skb_store_bytes(ctx, at, &header, sizeof(header), BPF_F_RECOMPUTE_CSUM) ||
	    bpf_skb_store_bytes(ctx, L3 + sizeof(struct ip6), &option, sizeof(option),
				BPF_F_RECOMPUTE_CSUM))
		return DROP_WRITE;
#endif
	packet->l4 += sizeof(option);
	return 0;
}

static __always_inline int dsr_decode6(CTX *ctx, const struct packet6 *packet,
				       struct translation *service)
{
	struct dsr_option6 option;
	__u8 proto;

	if (packet->l4 < L3 + sizeof(struct ip6) + sizeof(option) ||
	    packet_load(ctx, L3 + __builtin_offsetof(struct ip6, proto), &proto, sizeof(proto)) ||
	    proto != IPPROTO_DSTOPTS ||
	    packet_load(ctx, L3 + sizeof(struct ip6), &option, sizeof(option)) ||
	    option.header_length != sizeof(option) / 8 - 1 || option.type != DSR_OPTION6 ||
	    option.length != sizeof(option) - 4)
		return 0;
	__builtin_memset(service, 0, sizeof(*service));
	ct_address6(service->address, option.address);
	service->port = option.port;
	return 1;
}
#endif

/* Outer source address, by flow hash, so that the backend's node spreads flows over its queues. */
#if AF == 4
static __always_inline __be32 tunnel_source4(const struct packet4 *packet)
{
	__u32 bits = 32 - options.packet.rss4_bits;
	__u32 flow = packet->saddr ^ ((__u32)packet->sport << 16 | packet->dport);

	return options.packet.rss4 | bpf_htonl(dsr_hash(flow, bits));
}
#else
static __always_inline void tunnel_source6(const struct packet6 *packet, __be32 *source)
{
	__u32 bits = 128 - options.packet.rss6_bits;
	__u32 flow = packet->saddr[0] ^ packet->saddr[1] ^ packet->saddr[2] ^ packet->saddr[3] ^
		     ((__u32)packet->sport << 16 | packet->dport);

	copy6(source, packet_options()->rss6);
	source[3] |= bpf_htonl(dsr_hash(flow, bits < 32 ? bits : 32));
}
#endif

/* Makes room before the network header. Returns 0, or less. */
static __always_inline long AF_FN(tunnel_room)(CTX *ctx, const packet_t *packet)
{
	const __u32 size = sizeof(ip_t);
#ifdef PACKET_XDP
	struct ethernet *ethernet;

	(void)packet;
	if (bpf_xdp_adjust_head(ctx, -(int)size))
		return -1;
	ethernet = packet_bytes(ctx, 0, sizeof(*ethernet));
	if (!ethernet)
		return -1;
	ethernet->type = AF == 4 ? bpf_htons(ETH_P_IP) : bpf_htons(ETH_P_IPV6);
	return 0;
#else
	__u64 flags = AF == 4 ? BPF_F_ADJ_ROOM_ENCAP_L3_IPV4 : BPF_F_ADJ_ROOM_ENCAP_L3_IPV6;

	/* Datagrams have the size that they have. */
	if (packet->proto != IPPROTO_TCP)
		flags |= BPF_F_ADJ_ROOM_FIXED_GSO;
	return bpf_skb_adjust_room(ctx, size, BPF_ADJ_ROOM_MAC, flags);
#endif
}

/* Encapsulates the packet in one for a backend. Returns a drop reason, or 0. */
static __noinline int AF_FN(ipip_encapsulate)(CTX *ctx, scratch_t *scratch, AF_ADDRESS_IN backend)
{
	packet_t *packet = &scratch->packet;
	ip_t outer = {}, *inner;

	inner = packet_bytes(ctx, L3, sizeof(*inner));
	if (!inner)
		return DROP_WRITE;
#if AF == 4
	outer.version_ihl = 0x45;
	outer.tos = inner->tos;
	outer.length = bpf_htons(bpf_ntohs(inner->length) + sizeof(outer));
	outer.id = inner->id;
	/* Whether it may be fragmented (RFC 2003 3.1). */
	outer.fragment = inner->fragment & bpf_htons(IP4_DONT_FRAGMENT);
	outer.ttl = TUNNEL_HOPS_FIRST;
	outer.proto = TUNNEL_PROTO4;
	outer.source = tunnel_source4(packet);
	outer.destination = backend;
	outer.checksum = fold_checksum(bpf_csum_diff(NULL, 0, (__be32 *)&outer, sizeof(outer), 0));
#else
	outer.flow = inner->flow;
	outer.length = bpf_htons(bpf_ntohs(inner->length) + sizeof(outer));
	outer.proto = TUNNEL_PROTO6;
	outer.hop_limit = TUNNEL_HOPS_FIRST;
	tunnel_source6(packet, outer.source);
	copy6(outer.destination, backend);
#endif
	if (AF_FN(tunnel_room)(ctx, packet))
		return DROP_WRITE;
	packet->hop_limit = TUNNEL_HOPS_FIRST;
#ifdef PACKET_XDP
	return packet_store(ctx, L3, &outer, sizeof(outer)) ? DROP_WRITE : 0;
#else
	/* A checksum that the interface made covers this. */
	return bpf_skb_store_bytes(ctx, L3, &outer, sizeof(outer), BPF_F_RECOMPUTE_CSUM)
		       ? DROP_WRITE
		       : 0;
#endif
}

/* Puts the packet, which is on its way to a backend, into one for the backend's address, as it was
 * when it came. Returns a drop reason, or 0.
 */
static __always_inline int AF_FN(dsr_encapsulate)(CTX *ctx, scratch_t *scratch)
{
	AF_ADDRESS(backend);
	int error;

	AF_COPY(backend, scratch->packet.daddr);
	error = AF_FN(untranslate)(ctx, scratch);
	return error ? error : AF_FN(ipip_encapsulate)(ctx, scratch, backend);
}

/* Tells the backend's node the service's address. Returns a drop reason, or 0. */
static __always_inline int AF_FN(dsr_dispatch)(CTX *ctx, scratch_t *scratch)
{
	if (options.packet.dsr == DSR_IPIP)
		return AF_FN(dsr_encapsulate)(ctx, scratch);
	return AF_FN(dsr_encode)(ctx, scratch);
}

#ifndef PACKET_XDP
/* Takes the service's address out of the packet inside an ICMP error, `inner`, as its sender did
 * not put it there. It stays where it is not the first option, where options of the error itself
 * are before it, and where the error says how long the packet inside is (RFC 4884). Returns a drop
 * reason, or 0.
 */
GLOBAL int AF_FN(dsr_unquote)(CTX *ctx, scratch_t *scratch)
{
	struct {
		struct icmp icmp;
		ip_t ip;
		dsr_option_t option;
	} quote;
	const __u32 size = sizeof(quote.option);
	const __be16 quote_length = AF == 4 ? bpf_htons(0x00ff) : bpf_htons(0xff00);
	__u16 *checksum = AF == 4 ? &((struct ip4 *)&quote.ip)->checksum : &quote.icmp.checksum;
	const __u32 at = L3 + __builtin_offsetof(ip_t, length);
	__u32 before, after;
	__be16 length;

	scratch = OWN_SCRATCH(scratch);
	if (!scratch || options.packet.dsr != DSR_OPTION ||
	    scratch->packet.l4 != L3 + sizeof(quote.ip) ||
	    scratch->inner.l4 < scratch->packet.l4 + sizeof(quote) ||
	    packet_load(ctx, scratch->packet.l4, &quote, sizeof(quote)) ||
	    (quote.icmp.id & quote_length) || quote.option.type != AF_FN(DSR_OPTION))
		return 0;
	/* Of IPv4 the header's checksum makes up for all that changes, of IPv6 the message's does.
	 */
#if AF == 4
	if (quote.option.length != size)
		return 0;
	before = *(__u32 *)&quote.ip;
	quote.ip.version_ihl -= size / 4;
	quote.ip.length = bpf_htons(bpf_ntohs(quote.ip.length) - size);
	after = *(__u32 *)&quote.ip;
#else
	if (quote.ip.proto != IPPROTO_DSTOPTS || quote.option.length != size - 4 ||
	    quote.option.header_length != size / 8 - 1)
		return 0;
	before = *(__u32 *)&quote.ip.length;
	quote.ip.length = bpf_htons(bpf_ntohs(quote.ip.length) - size);
	quote.ip.proto = quote.option.proto;
	after = *(__u32 *)&quote.ip.length;
	/* The message's own length, which counts in IPv6. */
	*checksum = checksum_replace(*checksum, bpf_htons(size), 0);
#endif
	*checksum = checksum_replace(*checksum, before, after);
	*checksum = checksum_add(*checksum, bpf_csum_diff((void *)&quote.option, size, NULL, 0, 0));
	if (packet_load(ctx, at, &length, sizeof(length)))
		return DROP_WRITE;
#if AF == 4
	if (bpf_l3_csum_replace(ctx, L3 + __builtin_offsetof(struct ip4, checksum), length,
				bpf_htons(bpf_ntohs(length) - size), sizeof(length)))
		return DROP_WRITE;
#endif
	length = bpf_htons(bpf_ntohs(length) - size);
	/* A checksum that the interface made covers these. */
	if (bpf_skb_store_bytes(ctx, at, &length, sizeof(length), BPF_F_RECOMPUTE_CSUM) ||
	    bpf_skb_store_bytes(ctx, scratch->packet.l4 + size, &quote, sizeof(quote) - size,
				BPF_F_RECOMPUTE_CSUM) ||
	    bpf_skb_adjust_room(ctx, -(int)size, BPF_ADJ_ROOM_NET, BPF_F_ADJ_ROOM_FIXED_GSO))
		return DROP_WRITE;
	scratch->inner.l4 -= size;
	return 0;
}
#endif
