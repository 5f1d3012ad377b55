/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Headers of one address family. */

struct AF_FN(packet) {
	AF_ADDRESS(saddr);
	AF_ADDRESS(daddr);
	__be16 sport; /* of an echo request: its id */
	__be16 dport; /* of an echo reply: its id */
	__u16 l4;     /* offset of the transport header */
	__u8 proto;   /* behind extension headers */
	__u8 tcp_flags;
	__u8 icmp_type;
	__u8 icmp_code;
	__u8 related;  /* an ICMP error */
	__u8 fragment; /* enum fragment */
	__u8 error;    /* drop reason: why it has no ports */
	__u8 ct_error; /* drop reason: why it cannot be tracked */
	__u8 hop_limit;
	__u8 pad[3];
	__be32 fragment_id;
};

/* Initializes a FIB lookup for these addresses. */
static __always_inline void AF_FN(init_fib_lookup)(CTX *ctx, AF_ADDRESS_IN source,
						   AF_ADDRESS_IN destination,
						   struct bpf_fib_lookup *fib)
{
	fib->family = AF_FN(FIB_FAMILY);
	fib->ifindex = packet_interface(ctx);
#if AF == 4
	fib->ipv4_src = source;
	fib->ipv4_dst = destination;
#else
	copy6(fib->ipv6_src, source);
	copy6(fib->ipv6_dst, destination);
#endif
}

static __always_inline void AF_FN(fragment_key)(const packet_t *packet, fragment_key_t *key)
{
	AF_COPY(key->daddr, packet->daddr);
	AF_COPY(key->saddr, packet->saddr);
	key->id = packet->fragment_id;
	key->proto = packet->proto;
}

#undef FRAGMENTS
#undef FRAGMENTS_ON
#define FRAGMENTS AF_JOIN(cilium_ipv, _frag_datagrams)
#define FRAGMENTS_ON options.packet.AF_FN(fragments)

/* Stores the ports of a first fragment. Returns 0, or less. Echo messages are stored later: see
 * echo.h.
 */
static __noinline int AF_FN(fragment_remember)(const packet_t *packet)
{
	fragment_key_t key = {};
	struct fragment_ports ports = {.sport = packet->sport, .dport = packet->dport};

	if (packet->proto == ICMP_PROTO)
		return 0;
	AF_FN(fragment_key)(packet, &key);
	return map_update(&FRAGMENTS, &key, &ports, BPF_ANY);
}

static __always_inline int AF_FN(is_echo)(__u8 icmp_type)
{
	return icmp_type == AF_FN(ICMP_ECHO) || icmp_type == AF_FN(ICMP_ECHO_REPLY);
}

/* The id of an echo message is the source port of a request and the destination port of a reply. */
static __always_inline void AF_FN(echo)(packet_t *packet, __u8 type, __be16 id)
{
	packet->icmp_type = type;
	if (type == AF_FN(ICMP_ECHO))
		packet->sport = id;
	else
		packet->dport = id;
}

/* Restores the ports of a later fragment, or type and id of an echo message. Returns a drop reason,
 * or 0.
 */
static __noinline __u8 AF_FN(fragment_ports)(packet_t *packet)
{
	fragment_key_t key = {};
	const struct fragment_ports *ports;

	AF_FN(fragment_key)(packet, &key);
	ports = bpf_map_lookup_elem(&FRAGMENTS, &key);
	if (!ports)
		return DROP_FRAGMENT_NOT_FOUND;
	if (packet->proto == ICMP_PROTO) {
		AF_FN(echo)(packet, bpf_ntohs(ports->dport), ports->sport);
		return 0;
	}
	packet->sport = ports->sport;
	packet->dport = ports->dport;
	return 0;
}

static __always_inline void AF_FN(parse_icmp)(packet_t *packet, const struct icmp *icmp)
{
	packet->icmp_type = icmp->type;
	packet->icmp_code = icmp->code;
	switch (icmp->type) {
	case AF_FN(ICMP_ECHO):
	case AF_FN(ICMP_ECHO_REPLY):
		AF_FN(echo)(packet, icmp->type, icmp->id);
		break;
#if AF == 4
	case ICMP4_UNREACHABLE:
	case ICMP4_TIME_EXCEEDED:
	case ICMP4_PARAMETER:
#else
	case ICMP6_UNREACHABLE:
	case ICMP6_TOO_BIG:
	case ICMP6_TIME_EXCEEDED:
	case ICMP6_PARAMETER:
#endif
		packet->related = 1;
		break;
	}
}

/* The protocol has ports or an echo id for NAT. */
static __always_inline int AF_FN(has_translation)(__u8 proto)
{
	return has_ports(proto) || proto == ICMP_PROTO;
}

/* The transport header; `packet` has addresses, protocol, offset and fragment. */
static __always_inline void AF_FN(parse_transport)(CTX *ctx, packet_t *packet)
{
	const void *l4;

	if (packet->fragment == FRAGMENT_LATER) {
		packet->error =
			FRAGMENTS_ON ? AF_FN(fragment_ports)(packet) : DROP_FRAGMENT_UNSUPPORTED;
		packet->ct_error = packet->error;
		return;
	}
	if (packet->fragment == FRAGMENT_FIRST && !FRAGMENTS_ON) {
		packet->error = packet->ct_error = DROP_FRAGMENT_UNSUPPORTED;
		return;
	}
	switch (packet->proto) {
	case IPPROTO_TCP:
		l4 = packet_bytes(ctx, packet->l4, sizeof(struct tcp));
		if (l4) {
			packet->sport = ((const struct tcp *)l4)->source;
			packet->dport = ((const struct tcp *)l4)->destination;
			packet->tcp_flags = ((const struct tcp *)l4)->flags;
			break;
		}
		packet->ct_error = DROP_CT_HEADER;
		l4 = packet_bytes(ctx, packet->l4, 4);
		if (!l4) {
			packet->error = DROP_CT_HEADER;
			break;
		}
		packet->sport = ((const struct tcp *)l4)->source;
		packet->dport = ((const struct tcp *)l4)->destination;
		break;
	case IPPROTO_UDP:
		l4 = packet_bytes(ctx, packet->l4, sizeof(struct udp));
		if (!l4) {
			packet->error = packet->ct_error = DROP_CT_HEADER;
			break;
		}
		packet->sport = ((const struct udp *)l4)->source;
		packet->dport = ((const struct udp *)l4)->destination;
		break;
	case IPPROTO_SCTP:
		if (!options.packet.sctp)
			goto without_ports;
		l4 = packet_bytes(ctx, packet->l4, sizeof(struct sctp));
		if (!l4) {
			packet->error = packet->ct_error = DROP_CT_HEADER;
			break;
		}
		packet->sport = ((const struct sctp *)l4)->source;
		packet->dport = ((const struct sctp *)l4)->destination;
		break;
	case ICMP_PROTO:
		l4 = packet_bytes(ctx, packet->l4, sizeof(struct icmp));
		/* No other messages need be larger than a packet. */
		if (packet->fragment && (!l4 || !AF_FN(is_echo)(((const struct icmp *)l4)->type)))
			packet->ct_error = DROP_INVALID;
		else if (l4)
			AF_FN(parse_icmp)(packet, l4);
		else
			packet->ct_error = DROP_CT_HEADER;
		break;
	default:
	without_ports:
		if (options.packet.protocols)
			break;
		packet->ct_error = DROP_CT_PROTOCOL;
		return;
	}
	/* Dropped packets are not stored. */
	if (packet->fragment == FRAGMENT_FIRST && !packet->ct_error)
		AF_FN(fragment_remember)(packet);
}

#if AF == 4
/* Parses the headers. Returns a drop reason if they are invalid, or 0. */
static __always_inline __u8 parse4(CTX *ctx, struct packet4 *packet)
{
	const struct ip4 *ip = packet_bytes(ctx, L3, sizeof(*ip));
	__u16 fragment, header;

	__builtin_memset(packet, 0, sizeof(*packet));
	if (!ip)
		return DROP_CT_HEADER;
	packet->saddr = ip->source;
	packet->daddr = ip->destination;
	header = (ip->version_ihl & 0xf) * 4;
	if (ip->version_ihl >> 4 != 4 || header < sizeof(*ip) ||
	    (packet_length(ctx) <= 0xffff && L3 + bpf_ntohs(ip->length) > packet_length(ctx)))
		return DROP_CT_HEADER;
	packet->proto = ip->proto;
	packet->hop_limit = ip->ttl;
	packet->l4 = L3 + header;
	packet->fragment_id = ip->id;
	fragment = bpf_ntohs(ip->fragment);
	if (fragment & IP4_FRAGMENT_OFFSET)
		packet->fragment = FRAGMENT_LATER;
	else if (fragment & IP4_MORE_FRAGMENTS)
		packet->fragment = FRAGMENT_FIRST;
	parse_transport4(ctx, packet);
	return 0;
}
#else
struct fragment_header {
	__u8 proto;
	__u8 reserved;
	__be16 offset; /* bit 0: more follow */
	__be32 id;
};

/* Parses the headers. Returns a drop reason if they are invalid, or 0. */
static __always_inline __u8 parse6(CTX *ctx, struct packet6 *packet)
{
	const struct ip6 *ip = packet_bytes(ctx, L3, sizeof(*ip));
	struct fragment_header header;
	__u32 offset = L3 + sizeof(*ip);
	__u8 proto;
	int n = 0;

	__builtin_memset(packet, 0, sizeof(*packet));
	if (!ip)
		return DROP_CT_HEADER;
	copy6(packet->saddr, ip->source);
	copy6(packet->daddr, ip->destination);
	if ((bpf_ntohl(ip->flow) >> 28) != 6)
		return DROP_CT_HEADER;
	packet->hop_limit = ip->hop_limit;
	proto = ip->proto;
	/* Condition at the end of the loop: Linux 6.1 rejects others. */
	do {
		switch (proto) {
		case IPPROTO_NONE:
			return DROP_EXTENSION_HEADER;
		case IPPROTO_HOPOPTS:
		case IPPROTO_ROUTING:
		case IPPROTO_DSTOPTS:
		case IPPROTO_AH:
		case IPPROTO_FRAGMENT:
			break;
		default:
			goto transport;
		}
		if (packet_load(ctx, offset, &header, sizeof(header)))
			return DROP_CT_HEADER;
		if (proto == IPPROTO_FRAGMENT) {
			packet->fragment_id = header.id;
			if (header.offset & bpf_htons(0xfff8))
				packet->fragment = FRAGMENT_LATER;
			else if (header.offset & bpf_htons(1))
				packet->fragment = FRAGMENT_FIRST;
			offset += 8;
		} else if (proto == IPPROTO_AH) {
			offset += (header.reserved + 2) * 4;
		} else {
			offset += (header.reserved + 1) * 8;
		}
		proto = header.proto;
	} while (++n <= EXTENSION_HEADERS);
	return DROP_EXTENSION_HEADER;
transport:
	packet->proto = proto;
	packet->l4 = offset;
	parse_transport6(ctx, packet);
	return 0;
}
#endif
