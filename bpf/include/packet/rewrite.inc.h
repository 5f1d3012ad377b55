/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Rewriting of one address family. */

/* Where the checksum of the transport header is; 0 if there is none that covers addresses. */
static __always_inline __u32 AF_FN(l4_checksum)(const struct AF_FN(packet) * packet)
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

/* A zero checksum of UDP stays zero: there is none. */
static __always_inline __u64 AF_FN(l4_checksum_flags)(const struct AF_FN(packet) * packet)
{
	return packet->proto == IPPROTO_UDP ? BPF_F_MARK_MANGLED_0 : 0;
}

/* Replaces the address of one side. Returns a drop reason, or 0. */
static __noinline int AF_FN(rewrite_address)(CTX *ctx, struct AF_FN(packet) * packet,
					     enum side side, AF_ADDRESS_IN address)
{
	__u32 checksum = AF_FN(l4_checksum)(packet);
	struct AF_FN(ip) * ip;
	AF_ADDRESS(from);
	AF_ADDRESS(to);
	__s64 difference;

	if (side == SOURCE)
		AF_COPY(from, packet->saddr);
	else
		AF_COPY(from, packet->daddr);
	AF_COPY(to, address);
	ip = packet_bytes(ctx, L3, sizeof(*ip));
	if (!ip)
		return DROP_WRITE;
	if (side == SOURCE) {
		AF_COPY(ip->source, to);
		AF_COPY(packet->saddr, to);
	} else {
		AF_COPY(ip->destination, to);
		AF_COPY(packet->daddr, to);
	}
#if AF == 4
	ip->checksum = checksum_replace(ip->checksum, from, to);
	difference = bpf_csum_diff(&from, sizeof(from), &to, sizeof(to), 0);
#else
	difference = bpf_csum_diff(from, sizeof(from), to, sizeof(to), 0);
#endif
	if (checksum && replace_l4_checksum(ctx, checksum, 0, difference,
					    BPF_F_PSEUDO_HDR | AF_FN(l4_checksum_flags)(packet)))
		return DROP_WRITE;
	return 0;
}

/* Replaces the port of one side, or the id of an echo message. Returns a drop reason, or 0. */
static __noinline int AF_FN(rewrite_port)(CTX *ctx, struct AF_FN(packet) * packet, enum side side,
					  __be16 port)
{
	__be16 from = side == SOURCE ? packet->sport : packet->dport;
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
	if (!checksum)
		return DROP_WRITE;
	if (replace_l4_checksum(ctx, checksum, from, port,
				sizeof(port) | AF_FN(l4_checksum_flags)(packet)) ||
	    packet_store(ctx, offset, &port, sizeof(port)))
		return DROP_WRITE;
	return 0;
}

/* One hop further. Returns a drop reason, or 0. */
static __always_inline __u8 AF_FN(take_hop)(CTX *ctx, struct AF_FN(packet) * packet)
{
	struct AF_FN(ip) * ip;

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
