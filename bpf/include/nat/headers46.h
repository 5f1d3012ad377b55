/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Header translation between address families (RFC 7915), with IPv4 addresses embedded in IPv6
 * addresses. For tc programs.
 */
#ifndef NAT_HEADERS46_H
#define NAT_HEADERS46_H

#include "../packet/rewrite.h"
#include "../packet/scratch.h"
#include "embed.h"
#include "icmp46.h"
#include "memory46.h"

/* Larger packets come from senders who know the MTU of the path (RFC 7915 5.1). */
#define FRAGMENTABLE_MAX 1260
#define IP6_MTU_MIN 1280

#define OPTIONS_END 0x100
#define OPTIONS_ROUTED 0x101

/* Returns the offset of the option after `at`: OPTIONS_END if there is none, OPTIONS_ROUTED for an
 * unfinished source route (RFC 7915 4.1) or an invalid option. Not inlined: the verifier would
 * explore each option.
 */
GLOBAL __u32 next_option(CTX *ctx, __u32 at)
{
	struct {
		__u8 type;
		__u8 length;
		__u8 pointer;
		__u8 pad;
	} option;

	/* There is always a transport header behind. */
	if (bpf_skb_load_bytes(ctx, L3 + sizeof(struct ip4) + (at & 0x3f), &option, sizeof(option)))
		return OPTIONS_ROUTED;
	if (option.type == 0)
		return OPTIONS_END;
	if (option.type == 1)
		return at + 1;
	if (option.length < 2)
		return OPTIONS_ROUTED;
	if ((option.type == 131 || option.type == 137) && option.pointer <= option.length)
		return OPTIONS_ROUTED;
	return at + option.length;
}

static __always_inline int is_source_routed(CTX *ctx, __u32 length)
{
	__u32 at = 0;
	int n;

	for (n = 0; n < 40; n++) {
		if (at >= length)
			break;
		at = next_option(ctx, at);
	}
	return at == OPTIONS_ROUTED;
}

/* A datagram without a checksum, which IPv6 has none of. */
static __always_inline int udp_without_checksum(CTX *ctx, const struct packet4 *packet)
{
	__u16 checksum;

	return packet->proto == IPPROTO_UDP && packet->fragment != FRAGMENT_LATER &&
	       !packet_load(ctx, packet->l4 + UDP_CHECKSUM, &checksum, sizeof(checksum)) &&
	       !checksum;
}

/* Fills in the checksum of a datagram at `l4`. Returns 0, or less. */
static __always_inline int fill_udp_checksum(CTX *ctx, const struct ip6 *ip, __u32 l4)
{
	__u32 sum = bpf_csum_diff(NULL, 0, (__be32 *)ip->source, 32, 0);
	__be32 pseudo[2];
	struct udp udp;
	__u16 checksum;

	if (packet_load(ctx, l4, &udp, sizeof(udp)))
		return -1;
	pseudo[0] = bpf_htonl(bpf_ntohs(udp.length));
	pseudo[1] = bpf_htonl(IPPROTO_UDP);
	sum = bpf_csum_diff(NULL, 0, pseudo, sizeof(pseudo), sum);
	if (sum_bytes(ctx, l4, bpf_ntohs(udp.length), &sum))
		return -1;
	sum = (sum & 0xffff) + (sum >> 16);
	checksum = fold_checksum(sum);
	if (!checksum)
		checksum = 0xffff;
	return store_header(ctx, l4 + UDP_CHECKSUM, &checksum, sizeof(checksum));
}

/* Translates the packet to IPv6. Returns a drop reason, or 0. */
GLOBAL int headers_4to6(CTX *ctx, struct scratch4 *scratch)
{
	const __be16 type = bpf_htons(ETH_P_IPV6);
	struct fragment_header fragment = {};
	struct packet4 *packet;
	struct ip6 to = {};
	struct ip4 ip;
	__u32 extra, header, l4;
	int without_checksum;

	if (!scratch || !options.packet.nat46x64)
		return DROP_NAT46;
	packet = &scratch->packet;
	if (packet_load(ctx, L3, &ip, sizeof(ip)))
		return DROP_NAT46;
	extra = (packet->l4 - L3 - sizeof(ip)) & 0x3c;
	if (bpf_ntohs(ip.length) < sizeof(ip) + extra || (extra && is_source_routed(ctx, extra)))
		return DROP_NAT46;
	header = packet->fragment ? sizeof(fragment) : 0;
	without_checksum = udp_without_checksum(ctx, packet);
	/* The checksum of a fragmented datagram cannot be computed (RFC 7915 1.2, 4.5). */
	if (packet->fragment && (without_checksum || packet->proto == IPPROTO_ICMP))
		return DROP_NAT46;
	to.flow = bpf_htonl(6U << 28 | (__u32)ip.tos << 20);
	to.length = bpf_htons(bpf_ntohs(ip.length) - sizeof(ip) - extra + header);
	to.proto = ip.proto == IPPROTO_ICMP ? IPPROTO_ICMPV6 : ip.proto;
	to.hop_limit = ip.ttl;
	embed(to.source, ip.source);
	embed(to.destination, ip.destination);
	if (header) {
		fragment.proto = to.proto;
		fragment.offset = bpf_htons((bpf_ntohs(ip.fragment) & IP4_FRAGMENT_OFFSET) << 3 |
					    !!(ip.fragment & bpf_htons(IP4_MORE_FRAGMENTS)));
		fragment.id = bpf_htonl(bpf_ntohs(ip.id));
		to.proto = IPPROTO_FRAGMENT;
	}
	if (extra && bpf_skb_adjust_room(ctx, -(__s32)extra, BPF_ADJ_ROOM_NET, 0))
		return DROP_NAT46;
	if (bpf_skb_change_proto(ctx, type, 0))
		return DROP_NAT46;
	if (header &&
	    bpf_skb_adjust_room(ctx, sizeof(fragment), BPF_ADJ_ROOM_NET, BPF_F_ADJ_ROOM_FIXED_GSO))
		return DROP_NAT46;
	if (packet_store(ctx, __builtin_offsetof(struct ethernet, type), &type, sizeof(type)) ||
	    store_header(ctx, L3, &to, sizeof(to)) ||
	    (header && store_header(ctx, L3 + sizeof(to), &fragment, sizeof(fragment))))
		return DROP_NAT46;
	l4 = L3 + sizeof(to) + header;
	if (packet->proto == IPPROTO_ICMP)
		return icmp_4to6(ctx, &to);
	if (without_checksum)
		return fill_udp_checksum(ctx, &to, l4) ? DROP_NAT46 : 0;
	packet->l4 = l4;
	if (l4_checksum4(packet) &&
	    replace_l4_checksum(ctx, l4_checksum4(packet), 0,
				bpf_csum_diff(&ip.source, 8, (__be32 *)to.source, 32, 0),
				BPF_F_PSEUDO_HDR | l4_checksum_flags4(packet)))
		return DROP_NAT46;
	return 0;
}

/* Parses the extension headers. Fills in `fragment` if there is one. Returns 0, or less for an
 * unfinished source route (RFC 7915 5.1).
 */
static __always_inline int read_extensions(CTX *ctx, const struct packet6 *packet, __u8 proto,
					   struct fragment_header *fragment)
{
	struct fragment_header header;
	__u32 offset = L3 + sizeof(struct ip6);
	int n;

	for (n = 0; n < EXTENSION_HEADERS; n++) {
		if (offset >= packet->l4)
			return 0;
		if (packet_load(ctx, offset, &header, sizeof(header)))
			return -1;
		/* Segments left: the byte behind the type. */
		if (proto == IPPROTO_ROUTING && (bpf_ntohs(header.offset) & 0xff))
			return -1;
		if (proto == IPPROTO_AH)
			return -1;
		if (proto == IPPROTO_FRAGMENT) {
			*fragment = header;
			offset += 8;
		} else {
			offset += (header.reserved + 1) * 8;
		}
		proto = header.proto;
	}
	return 0;
}

/* Translates the packet to IPv4. Returns a drop reason, or 0. */
GLOBAL int headers_6to4(CTX *ctx, struct scratch6 *scratch)
{
	const __be16 type = bpf_htons(ETH_P_IP);
	struct fragment_header fragment = {};
	struct packet6 *packet;
	struct ip4 to = {};
	struct ip6 ip;
	__u32 extra, length;

	if (!scratch || !options.packet.nat46x64)
		return DROP_NAT64;
	packet = &scratch->packet;
	if (packet_load(ctx, L3, &ip, sizeof(ip)))
		return DROP_NAT64;
	extra = (packet->l4 - L3 - sizeof(ip)) & 0xfff;
	if (extra && read_extensions(ctx, packet, ip.proto, &fragment))
		return DROP_NAT64;
	if (packet->fragment && packet->proto == IPPROTO_ICMPV6)
		return DROP_NAT64;
	if (!is_embedded(ip.destination))
		return DROP_NAT64;
	if (is_embedded(ip.source))
		to.source = ip.source[3];
	else if (packet->related) /* A router on the way has no address of IPv4. */
		to.source = options.packet.nodeport_source4;
	else
		return DROP_NAT64;
	to.destination = ip.destination[3];
	length = sizeof(to) + bpf_ntohs(ip.length) - extra;
	if (length > 0xffff)
		return DROP_NAT64;
	to.version_ihl = 0x45;
	to.tos = bpf_ntohl(ip.flow) >> 20;
	to.length = bpf_htons(length);
	if (packet->fragment) {
		to.id = bpf_htons(bpf_ntohl(fragment.id));
		to.fragment = bpf_htons(bpf_ntohs(fragment.offset) >> 3 |
					(fragment.offset & bpf_htons(1) ? IP4_MORE_FRAGMENTS : 0));
	} else if (length > FRAGMENTABLE_MAX) {
		to.fragment = bpf_htons(IP4_DONT_FRAGMENT);
	} else {
		to.id = bpf_get_prandom_u32();
	}
	to.ttl = ip.hop_limit;
	to.proto = packet->proto == IPPROTO_ICMPV6 ? IPPROTO_ICMP : packet->proto;
	to.checksum = fold_checksum(bpf_csum_diff(NULL, 0, (__be32 *)&to, sizeof(to), 0));
	if (extra && bpf_skb_adjust_room(ctx, -(__s32)extra, BPF_ADJ_ROOM_NET, 0))
		return DROP_NAT64;
	if (bpf_skb_change_proto(ctx, type, 0))
		return DROP_NAT64;
	if (packet_store(ctx, __builtin_offsetof(struct ethernet, type), &type, sizeof(type)) ||
	    store_header(ctx, L3, &to, sizeof(to)))
		return DROP_NAT64;
	if (packet->proto == IPPROTO_ICMPV6)
		return icmp_6to4(ctx, &ip, &to);
	packet->l4 = L3 + sizeof(to);
	if (l4_checksum6(packet) &&
	    replace_l4_checksum(ctx, l4_checksum6(packet), 0,
				bpf_csum_diff((__be32 *)ip.source, 32, &to.source, 8, 0),
				BPF_F_PSEUDO_HDR | l4_checksum_flags6(packet)))
		return DROP_NAT64;
	return 0;
}

#endif /* NAT_HEADERS46_H */
