/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* ICMP errors of one address family. */

/* Replies with an ICMP error; bits 16 and up of `type_code` are an MTU. Returns a verdict. */
GLOBAL int AF_FN(reply_error)(CTX *ctx, packet_t *packet, __u32 type_code, __u32 embedded)
{
	const __u32 headers = sizeof(ip_t) + sizeof(struct icmp);
	struct ethernet *ethernet;
	ip_t *ip;
	struct icmp *icmp, error = {.type = type_code >> 8,
				    .code = type_code,
				    .sequence = bpf_htons(type_code >> 16)};
	__u32 sum, limit = type_code == AF_FN(NO_BACKEND) ? AF_FN(REPLY_BYTES_NO_BACKEND)
							  : AF_FN(REPLY_BYTES);
#if AF == 4
	__u8 tos;
#endif

	if (!packet)
		return -DROP_INVALID;
	if (embedded > limit)
		embedded = limit;
#if AF == 4
	ip = packet_bytes(ctx, L3, sizeof(*ip));
	if (!ip)
		return -DROP_WRITE;
	/* RFC 1812 4.3.2.5 */
	tos = ip->tos;
#else
	if (!ratelimit_take_rate(RATELIMIT_ICMP6, ctx->ifindex, ICMP6_REPLY_RATE,
				 ICMP6_REPLY_BURST))
		return -DROP_RATE_LIMITED;
#endif
	if (reply_room(ctx, headers, embedded))
		return -DROP_WRITE;
	sum = bpf_csum_diff(NULL, 0, (__be32 *)&error, sizeof(error), 0);
#if AF == 6
	{
		__be32 pseudo[2] = {bpf_htonl(embedded + sizeof(error)), bpf_htonl(IPPROTO_ICMPV6)};

		sum = bpf_csum_diff(NULL, 0, packet->daddr, 16, sum);
		sum = bpf_csum_diff(NULL, 0, packet->saddr, 16, sum);
		sum = bpf_csum_diff(NULL, 0, pseudo, sizeof(pseudo), sum);
	}
#endif
	sum = sum_packet(ctx, L3 + headers, embedded, sum);
	error.checksum = fold_checksum(sum);

	ethernet = packet_bytes(ctx, 0, L3 + headers);
	if (!ethernet)
		return -DROP_WRITE;
	ip = (void *)ethernet + L3;
	icmp = (void *)(ip + 1);
	swap_macs(ethernet);
	__builtin_memset(ip, 0, sizeof(*ip));
#if AF == 4
	ip->version_ihl = 0x45;
	ip->tos = tos;
	ip->length = bpf_htons(headers + embedded);
	ip->ttl = 64;
	ip->proto = IPPROTO_ICMP;
	ip->source = packet->daddr;
	ip->destination = packet->saddr;
	ip->checksum = fold_checksum(bpf_csum_diff(NULL, 0, (__be32 *)ip, sizeof(*ip), 0));
#else
	ip->flow = bpf_htonl(6U << 28);
	ip->length = bpf_htons(embedded + sizeof(error));
	ip->hop_limit = 64;
	ip->proto = IPPROTO_ICMPV6;
	copy6(ip->source, packet->daddr);
	copy6(ip->destination, packet->saddr);
#endif
	*icmp = error;
	return FROM_TUNNEL ? REDIRECT_BACK : bpf_redirect(ctx->ifindex, 0);
}

/* Replies to an untranslated packet with "fragmentation needed". Returns a verdict. */
static __always_inline int AF_FN(send_frag_needed)(CTX *ctx, packet_t *packet,
						   struct trace_ctx *trace, __u32 mtu)
{
	/* Only for the first fragment (RFC 1122 3.2.2). */
	if (packet->fragment == FRAGMENT_LATER)
		return FAIL(trace, DROP_TOO_LARGE);
	trace->begins_echo = 0;
	return AF_FN(reply_error)(ctx, packet, AF_FN(FRAG_NEEDED) | mtu << 16,
				  packet_length(ctx) - L3);
}

/* Hop limit exceeded: IPv6 replies with "time exceeded". Returns a verdict. */
static __always_inline int AF_FN(send_time_exceeded)(CTX *ctx, packet_t *packet,
						     struct trace_ctx *trace)
{
#if AF == 6
	/* It has an address of IPv4. */
	if (options.packet.nat46x64 && is_embedded(packet->saddr))
		return FAIL(trace, DROP_TTL);
	trace->begins_echo = 0;
	DEBUG(ctx, trace, DEBUG_TIME_EXCEEDED, 0, 0);
	copy6(packet->daddr, packet_options()->router6);
	return reply_error6(ctx, packet, ICMP6_TIME_EXCEEDED << 8, ctx->len - L3);
#else
	(void)ctx;
	(void)packet;
	return FAIL(trace, DROP_TTL);
#endif
}
