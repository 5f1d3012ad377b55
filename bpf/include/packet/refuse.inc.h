/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Refuses TCP connections of clients outside, of one address family. */

/* Clears options between the network and TCP headers. The transport header keeps its offset, at
 * which the device may compute its checksum. Returns a drop reason, or 0.
 */
static __always_inline int AF_FN(clear_options)(CTX *ctx, const packet_t *packet)
{
	__u32 offset = L3 + sizeof(ip_t);
#if AF == 4
	const __be32 nothing = 0;
	int n;

	for (n = 0; n < 10 && offset < packet->l4; n++, offset += sizeof(nothing))
		if (packet_store(ctx, offset, &nothing, sizeof(nothing)))
			return DROP_WRITE;
	return 0;
#else
	/* Padding (RFC 8200 4.2) of the size of a DSR option. */
	const __u32 size = sizeof(struct dsr_option6);
	struct dsr_option6 padding = {
		.proto = IPPROTO_TCP,
		.header_length = size / 8 - 1,
		.type = 1,
		.length = size - 4,
	};

	if (packet->l4 == offset)
		return 0;
	if (packet->l4 != offset + size)
		return DROP_EXTENSION_HEADER;
	return packet_store(ctx, offset, &padding, size) ? DROP_WRITE : 0;
#endif
}

/* Rejects a TCP packet with a RST from its original destination (RFC 9293 3.5.2). Returns a
 * verdict.
 */
GLOBAL int AF_FN(refuse)(CTX *ctx, scratch_t *scratch)
{
	lb_reverse_nat_t asked ALIGNED;
	packet_t *packet;
	struct ethernet *ethernet;
	ip_t *ip;
	struct tcp tcp;
	__u32 length, between;
	int error;

	scratch = OWN_SCRATCH(scratch);
	if (!scratch)
		return -DROP_INVALID;
	packet = &scratch->packet;
	between = packet->l4 - L3 - sizeof(*ip);
	ip = packet_bytes(ctx, L3, sizeof(*ip));
	if (!ip || packet->fragment || packet_load(ctx, packet->l4, &tcp, sizeof(tcp)))
		return FAIL(&scratch->trace, DROP_NO_SERVICE);
	length = bpf_ntohs(ip->length) - (AF == 4 ? sizeof(*ip) : 0) - between -
		 (tcp.offset >> 4) * 4;
	AF_FN(original_destination)(scratch, &asked);
	tcp.source = asked.port;
	tcp.destination = packet->sport;
	if (tcp.flags & TCP_ACK) {
		tcp.sequence = tcp.acknowledgement;
		tcp.acknowledgement = 0;
		tcp.flags = TCP_RST;
	} else {
		length += !!(tcp.flags & TCP_SYN) + !!(tcp.flags & TCP_FIN);
		tcp.acknowledgement = bpf_htonl(bpf_ntohl(tcp.sequence) + length);
		tcp.sequence = 0;
		tcp.flags = TCP_RST | TCP_ACK;
	}
	tcp.offset = sizeof(tcp) / 4 << 4;
	tcp.window = 0;
	tcp.checksum = 0;
	tcp.urgent = 0;

	AF_COPY(packet->daddr, packet->saddr);
	AF_COPY(packet->saddr, asked.address);
	if (bpf_skb_change_tail(ctx, packet->l4 + sizeof(tcp), 0))
		return FAIL(&scratch->trace, DROP_WRITE);
	error = AF_FN(clear_options)(ctx, packet);
	if (error)
		return FAIL(&scratch->trace, error);
	ethernet = packet_bytes(ctx, 0, L3 + sizeof(*ip));
	if (!ethernet)
		return FAIL(&scratch->trace, DROP_WRITE);
	swap_macs(ethernet);
	ip = (void *)ethernet + L3;
#if AF == 4
	ip->tos = 0;
	ip->length = bpf_htons(sizeof(*ip) + between + sizeof(tcp));
	ip->id = 0;
	ip->fragment = bpf_htons(IP4_DONT_FRAGMENT);
	ip->ttl = 64;
	ip->source = packet->saddr;
	ip->destination = packet->daddr;
	ip->checksum = 0;
	/* The options are zero. */
	ip->checksum = fold_checksum(bpf_csum_diff(NULL, 0, (__be32 *)ip, sizeof(*ip), 0));
#else
	ip->flow = bpf_htonl(6U << 28);
	ip->length = bpf_htons(between + sizeof(tcp));
	ip->hop_limit = 64;
	copy6(ip->source, packet->saddr);
	copy6(ip->destination, packet->daddr);
#endif
	if (packet_store(ctx, packet->l4, &tcp, sizeof(tcp)))
		return FAIL(&scratch->trace, DROP_WRITE);
	/* Two steps: where the interface sums up the header, only the first is done. */
	length = bpf_htonl(IPPROTO_TCP + sizeof(tcp));
	length = bpf_csum_diff(NULL, 0, &length, sizeof(length), 0);
#if AF == 4
	length = bpf_csum_diff(NULL, 0, &packet->saddr, AF_SIZE, length);
	length = bpf_csum_diff(NULL, 0, &packet->daddr, AF_SIZE, length);
#else
	length = bpf_csum_diff(NULL, 0, packet->saddr, AF_SIZE, length);
	length = bpf_csum_diff(NULL, 0, packet->daddr, AF_SIZE, length);
#endif
	if (replace_l4_checksum(ctx, packet->l4 + TCP_CHECKSUM, 0, length, BPF_F_PSEUDO_HDR) ||
	    replace_l4_checksum(ctx, packet->l4 + TCP_CHECKSUM, 0,
				bpf_csum_diff(NULL, 0, (__be32 *)&tcp, sizeof(tcp), 0), 0))
		return FAIL(&scratch->trace, DROP_WRITE);
	/* Its source is right. */
	mark_snat_done(ctx);
	error = AF_FN(route)(ctx, scratch, 0);
	return error == TC_ACT_OK ? (int)bpf_redirect(ctx->ifindex, 0) : error;
}
