/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* ICMP translation between address families (RFC 7915 4.2, 5.2), with the packet in an error. Pure
 * rules are in icmp46_rules.h.
 */
#ifndef NAT_ICMP46_H
#define NAT_ICMP46_H

#include "embed.h"
#include "icmp46_rules.h"
#include "memory46.h"

/* Rewrites the transport checksum of the packet in an error, at `l4` behind it, if so much of it is
 * there. Returns what the checksum of the error changes by.
 */
static __always_inline __u32 fix_inner_checksum(CTX *ctx, __u8 proto, __u32 l4, __u32 difference)
{
	__u32 at = l4 + (proto == IPPROTO_TCP ? TCP_CHECKSUM : UDP_CHECKSUM);
	__u32 before = 0, after;
	__u16 checksum;

	if (proto != IPPROTO_TCP && proto != IPPROTO_UDP)
		return 0;
	if (packet_load(ctx, at, &checksum, sizeof(checksum)))
		return 0;
	if (proto == IPPROTO_UDP && !checksum)
		return 0;
	before = checksum;
	after = checksum_add(checksum, difference);
	checksum = after;
	if (store_header(ctx, at, &checksum, sizeof(checksum)))
		return 0;
	return bpf_csum_diff(&before, sizeof(before), &after, sizeof(after), 0);
}

/* The message of a packet whose network header is already `ip`. Returns a drop reason, or 0. */
static __noinline int icmp_4to6(CTX *ctx, struct ip6 *ip)
{
	struct headers46_memory *memory = headers46_memory_of_cpu();
	const __u32 at = L3 + sizeof(*ip), inside = at + sizeof(struct icmp);
	__be32 pseudo[2] = {0, bpf_htonl(IPPROTO_ICMPV6)};
	struct icmp *icmp, *message;
	struct ip4 *from;
	struct ip6 *to;
	__u32 length, sum;
	__u16 checksum;
	int kind;

	if (!memory)
		return DROP_NAT46;
	icmp = (struct icmp *)memory->before;
	message = (struct icmp *)memory->after;
	if (packet_load(ctx, at, icmp, sizeof(*icmp)))
		return DROP_NAT46;
	checksum = icmp->checksum;
	icmp->checksum = 0;
	*message = *icmp;
	kind = icmp46_map(message);
	if (kind == ICMP46_NONE)
		return DROP_NAT46;
	if (kind == ICMP46_ERROR) {
		from = (struct ip4 *)(icmp + 1);
		to = (struct ip6 *)(message + 1);
		if (packet_load(ctx, inside, from, sizeof(*from)) || !icmp46_inner(from, to))
			return DROP_NAT46;
		embed(to->source, from->source);
		embed(to->destination, from->destination);
		sum = bpf_csum_diff(&from->source, 8, (__be32 *)to->source, 32, 0);
		sum = fix_inner_checksum(ctx, from->proto, inside + sizeof(*from), sum);
		if (bpf_skb_adjust_room(ctx, FAMILY_GROWTH, BPF_ADJ_ROOM_NET,
					BPF_F_ADJ_ROOM_FIXED_GSO))
			return DROP_NAT46;
		ip->length = bpf_htons(bpf_ntohs(ip->length) + FAMILY_GROWTH);
		if (store_header(ctx, L3 + __builtin_offsetof(struct ip6, length), &ip->length,
				 sizeof(ip->length)))
			return DROP_NAT46;
		/* Both in one piece: header of the message, and of the packet in it. */
		sum = bpf_csum_diff(memory->before, sizeof(*icmp) + sizeof(*from), memory->after,
				    sizeof(*message) + sizeof(*to), sum);
	} else {
		sum = bpf_csum_diff(memory->before, sizeof(*icmp), memory->after, sizeof(*message),
				    0);
	}
	length = bpf_ntohs(ip->length);
	pseudo[0] = bpf_htonl(length);
	sum = bpf_csum_diff(NULL, 0, (__be32 *)ip->source, 32, sum);
	sum = bpf_csum_diff(NULL, 0, pseudo, sizeof(pseudo), sum);
	message->checksum = checksum_add(checksum, sum);
	if (kind == ICMP46_ERROR)
		return store_header(ctx, at, memory->after, sizeof(*message) + sizeof(*to))
			       ? DROP_NAT46
			       : 0;
	return store_header(ctx, at, memory->after, sizeof(*message)) ? DROP_NAT46 : 0;
}

/* The message of a packet whose network header was `was` and is already `ip`. Returns a drop
 * reason, or 0.
 */
static __noinline int icmp_6to4(CTX *ctx, const struct ip6 *was, struct ip4 *ip)
{
	struct headers46_memory *memory = headers46_memory_of_cpu();
	const __u32 at = L3 + sizeof(*ip), inside = at + sizeof(struct icmp);
	__be32 pseudo[2] = {0, bpf_htonl(IPPROTO_ICMPV6)};
	struct icmp *icmp, *message;
	struct ip6 *from;
	struct ip4 *to;
	__u16 checksum, length;
	__u32 sum;
	int kind;

	if (!memory)
		return DROP_NAT64;
	icmp = (struct icmp *)memory->before;
	message = (struct icmp *)memory->after;
	if (packet_load(ctx, at, icmp, sizeof(*icmp)))
		return DROP_NAT64;
	checksum = icmp->checksum;
	icmp->checksum = 0;
	*message = *icmp;
	length = bpf_ntohs(ip->length) - sizeof(*ip);
	pseudo[0] = bpf_htonl(length);
	kind = icmp64_map(message);
	if (kind == ICMP46_NONE)
		return DROP_NAT64;
	if (kind == ICMP46_ERROR) {
		from = (struct ip6 *)(icmp + 1);
		to = (struct ip4 *)(message + 1);
		if (packet_load(ctx, inside, from, sizeof(*from)) || !is_embedded(from->source) ||
		    !is_embedded(from->destination) || !icmp64_inner(from, to))
			return DROP_NAT64;
		to->source = from->source[3];
		to->destination = from->destination[3];
		to->checksum = fold_checksum(bpf_csum_diff(NULL, 0, (__be32 *)to, sizeof(*to), 0));
		sum = bpf_csum_diff((__be32 *)from->source, 32, &to->source, 8, 0);
		sum = fix_inner_checksum(ctx, from->proto, inside + sizeof(*from), sum);
		if (bpf_skb_adjust_room(ctx, -(__s32)FAMILY_GROWTH, BPF_ADJ_ROOM_NET, 0))
			return DROP_NAT64;
		ip->length = bpf_htons(bpf_ntohs(ip->length) - FAMILY_GROWTH);
		ip->checksum = 0;
		ip->checksum = fold_checksum(bpf_csum_diff(NULL, 0, (__be32 *)ip, sizeof(*ip), 0));
		if (store_header(ctx, L3, ip, sizeof(*ip)))
			return DROP_NAT64;
		sum = bpf_csum_diff(memory->before, sizeof(*icmp) + sizeof(*from), memory->after,
				    sizeof(*message) + sizeof(*to), sum);
	} else {
		sum = bpf_csum_diff(memory->before, sizeof(*icmp), memory->after, sizeof(*message),
				    0);
	}
	sum = bpf_csum_diff((__be32 *)was->source, 32, NULL, 0, sum);
	sum = bpf_csum_diff(pseudo, sizeof(pseudo), NULL, 0, sum);
	message->checksum = checksum_add(checksum, sum);
	if (kind == ICMP46_ERROR)
		return store_header(ctx, at, memory->after, sizeof(*message) + sizeof(*to))
			       ? DROP_NAT64
			       : 0;
	return store_header(ctx, at, memory->after, sizeof(*message)) ? DROP_NAT64 : 0;
}

#endif /* NAT_ICMP46_H */
