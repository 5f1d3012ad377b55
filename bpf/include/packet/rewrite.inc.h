/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Rewriting of one address family. */

/* Offset of the transport checksum; 0 if none covers addresses. */
static __always_inline __u32 AF_FN(l4_checksum)(const packet_t *packet)
{
	if (packet->fragment == FRAGMENT_LATER)
		return 0;
	switch (packet->proto) {
	case IPPROTO_TCP:
		return packet->l4 + TCP_CHECKSUM;
	case IPPROTO_UDP:
		return packet->l4 + UDP_CHECKSUM;
#if AF == 6
	case IPPROTO_ICMPV6:
		return packet->l4 + ICMP_CHECKSUM;
#endif
	}
	return 0;
}

/* A zero UDP checksum stays zero: none. */
static __always_inline __u64 AF_FN(l4_checksum_flags)(const packet_t *packet)
{
	return packet->proto == IPPROTO_UDP ? BPF_F_MARK_MANGLED_0 : 0;
}

/* As rewrite_address(), which is a function of its own. */
static __always_inline int AF_FN(write_address)(CTX *ctx, packet_t *packet, enum side side,
						AF_ADDRESS_IN address)
{
	__u32 difference, checksum = AF_FN(l4_checksum)(packet);
	ip_t *ip = packet_bytes(ctx, L3, sizeof(*ip));
#if AF == 4
	__be32 from = side == SOURCE ? packet->saddr : packet->daddr;
#else
	__be32 *from = side == SOURCE ? packet->saddr : packet->daddr;
#endif

	if (!ip)
		return DROP_WRITE;
#if AF == 4
	ip->checksum = checksum_replace(ip->checksum, from, address);
	difference = sum_difference(&from, &address, 1);
#else
	difference = address_difference(from, address);
#endif
	if (side == SOURCE) {
		AF_COPY(ip->source, address);
		AF_COPY(packet->saddr, address);
	} else {
		AF_COPY(ip->destination, address);
		AF_COPY(packet->daddr, address);
	}
	if (checksum && replace_l4_checksum(ctx, checksum, 0, difference,
					    BPF_F_PSEUDO_HDR | AF_FN(l4_checksum_flags)(packet)))
		return DROP_WRITE;
	return 0;
}

/* Rewrites the address of one side. Returns a drop reason, or 0. */
static __noinline int AF_FN(rewrite_address)(CTX *ctx, packet_t *packet, enum side side,
					     AF_ADDRESS_IN address)
{
	return AF_FN(write_address)(ctx, packet, side, address);
}

/* Rewrites the port of one side, or the id of an echo message. Returns a drop reason, or 0. */
static __always_inline int AF_FN(rewrite_port)(CTX *ctx, packet_t *packet, enum side side,
					       __be16 port)
{
	__be16 *at, from = side == SOURCE ? packet->sport : packet->dport;
	__u32 checksum, offset;

	if (side == SOURCE)
		packet->sport = port;
	else
		packet->dport = port;
	if (packet->fragment == FRAGMENT_LATER || from == port)
		return 0;
	/* Its checksum is a CRC of all the data. */
	if (packet->proto == IPPROTO_SCTP)
		return DROP_L4_CHECKSUM;
	if (packet->proto == ICMP_PROTO) {
		checksum = packet->l4 + ICMP_CHECKSUM;
		offset = packet->l4 + 4;
	} else {
		checksum = AF_FN(l4_checksum)(packet);
		offset = packet->l4 + (side == SOURCE ? 0 : 2);
	}
	at = packet_bytes(ctx, offset, sizeof(*at));
	if (!checksum || !at)
		return DROP_WRITE;
	*at = port;
	if (replace_l4_checksum(ctx, checksum, from, port,
				sizeof(port) | AF_FN(l4_checksum_flags)(packet)))
		return DROP_WRITE;
	return 0;
}

/* Rewrites address and port of one side, or the id of an echo message, if different. Returns a drop
 * reason, or 0.
 */
static __noinline int AF_FN(rewrite)(CTX *ctx, packet_t *packet, enum side side,
				     AF_ADDRESS_IN address, __be16 port)
{
	int error = 0;

	if (side == SOURCE ? !AF_SAME(packet->saddr, address) : !AF_SAME(packet->daddr, address))
		error = AF_FN(write_address)(ctx, packet, side, address);
	return error ? error : AF_FN(rewrite_port)(ctx, packet, side, port);
}

/* Decrements the hop limit. Returns a drop reason, or 0. */
static __always_inline __u8 AF_FN(take_hop)(CTX *ctx, packet_t *packet)
{
	ip_t *ip;

	if (packet->hop_limit <= 1)
		return DROP_TTL;
	ip = packet_bytes(ctx, L3, sizeof(*ip));
	if (!ip)
		return DROP_WRITE;
	packet->hop_limit--;
#if AF == 4
	ip->checksum = checksum_replace(ip->checksum, bpf_htons((__u16)(ip->ttl << 8)),
					bpf_htons((__u16)(packet->hop_limit << 8)));
	ip->ttl = packet->hop_limit;
#else
	ip->hop_limit = packet->hop_limit;
#endif
	return 0;
}
