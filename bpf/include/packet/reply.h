/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Replies of the node: ICMP errors, ARP, neighbour discovery. */
#ifndef PACKET_REPLY_H
#define PACKET_REPLY_H

#include "../endpoint/endpoint.h"
#include "../event/debug.h"
#include "../event/packet_event.h"
#include "../nat/embed.h"
#include "packet.h"
#include "rewrite.h"

/* ICMP error of services without backends. */
#define NO_BACKEND4 (ICMP4_UNREACHABLE << 8 | ICMP4_PORT_UNREACHABLE)
#define NO_BACKEND6 (ICMP6_UNREACHABLE << 8 | ICMP6_PORT_UNREACHABLE)

/* ICMP errors "fragmentation needed" and "packet too big". */
#define FRAG_NEEDED4 (ICMP4_UNREACHABLE << 8 | ICMP4_FRAGMENTATION_NEEDED)
#define FRAG_NEEDED6 (ICMP6_TOO_BIG << 8)

/* Maximum length of the quoted packet: errors have at most 576 (RFC 1812 4.3.2.3) or 1280 bytes
 * (RFC 4443 2.4). Errors of services without backends are shorter, as anybody can trigger them.
 */
#define REPLY_BYTES4 512
#define REPLY_BYTES6 1232
#define REPLY_BYTES_NO_BACKEND4 64
#define REPLY_BYTES_NO_BACKEND6 REPLY_BYTES6

#define REPLY_CHUNK 32
#define REPLY_CHUNKS (REPLY_BYTES6 / REPLY_CHUNK + 1)

/* Sum over bytes of the packet, for a checksum. */
static __always_inline __u32 sum_packet(CTX *ctx, __u32 offset, __u32 length, __u32 sum)
{
	__be32 chunk[REPLY_CHUNK / 4];

	sum_chunks(ctx, offset, length, &sum, chunk, REPLY_CHUNK, REPLY_CHUNKS);
	return sum;
}

static __always_inline void swap_macs(struct ethernet *ethernet)
{
	__u8 mac[6];

	copy_mac(mac, ethernet->destination);
	copy_mac(ethernet->destination, ethernet->source);
	copy_mac(ethernet->source, mac);
}

/* Truncates the packet to `embedded` and prepends room for IP and ICMP headers. */
static __always_inline int reply_room(CTX *ctx, __u32 header, __u32 embedded)
{
	/* Linearizes GSO packets. */
	if (bpf_skb_change_tail(ctx, L3 + embedded, 0))
		return -1;
	return bpf_skb_adjust_room(ctx, header, BPF_ADJ_ROOM_MAC, 0) ? -1 : 0;
}

#define AF 4
#include "reply.inc.h"
#undef AF
#define AF 6
#include "reply.inc.h"
#undef AF

struct arp {
	__be16 hardware;
	__be16 protocol;
	__u8 hardware_size;
	__u8 protocol_size;
	__be16 operation;
	__u8 sender_mac[6];
	__u8 sender[4];
	__u8 target_mac[6];
	__u8 target[4];
};
_Static_assert(sizeof(struct arp) == 28, "arp layout");

/* Replies to ARP requests for any address but the pod's own, unless the kernel does. Returns a
 * verdict.
 */
static __always_inline int reply_arp(CTX *ctx, const struct endpoint *pod)
{
	struct arp *arp = packet_bytes(ctx, L3, sizeof(*arp));
	struct ethernet *ethernet;
	__be32 target, sender;

	if (!arp)
		return -DROP_INVALID;
	ethernet = packet_bytes(ctx, 0, L3 + sizeof(*arp));
	if (!ethernet)
		return -DROP_INVALID;
	arp = (void *)ethernet + L3;
	__builtin_memcpy(&target, arp->target, 4);
	__builtin_memcpy(&sender, arp->sender, 4);
	if (!options.packet.arp_responder || (pod->flags & ENDPOINT_ARP_PASSTHROUGH) ||
	    arp->hardware != bpf_htons(1) || arp->protocol != bpf_htons(ETH_P_IP) ||
	    arp->operation != bpf_htons(1) || target == pod->ipv4)
		return TC_ACT_OK;
	copy_mac(ethernet->destination, ethernet->source);
	copy_mac(ethernet->source, pod->mac);
	arp->operation = bpf_htons(2);
	copy_mac(arp->target_mac, arp->sender_mac);
	copy_mac(arp->sender_mac, pod->mac);
	__builtin_memcpy(arp->sender, &target, 4);
	__builtin_memcpy(arp->target, &sender, 4);
	return bpf_redirect(ctx->ifindex, 0);
}

struct neighbour_message {
	struct icmp icmp; /* flags of an advertisement in place of id and sequence */
	__be32 target[4];
	__u8 option;
	__u8 option_length; /* in units of 8 bytes */
	__u8 mac[6];
};

#define ND_SOURCE_MAC 1
#define ND_TARGET_MAC 2
#define ND_ROUTER 0x80
#define ND_SOLICITED 0x40
#define ND_OVERRIDE 0x20

/* Sends an advertisement of `mac`, or of the requester's address if NULL, from `from`. Returns a
 * verdict.
 */
static __always_inline int advertise(CTX *ctx, const struct packet6 *packet, const __u8 *from,
				     const __u8 *mac, __u8 flags)
{
	struct {
		__be32 source[4];
		__be32 destination[4];
		__be32 length;
		__be32 proto;
		struct neighbour_message message;
	} sum = {};
	struct ethernet *ethernet;
	struct ip6 *ip;

	if (packet->l4 != L3 + sizeof(*ip) ||
	    bpf_skb_load_bytes(ctx, packet->l4 + 8, sum.source, 16) ||
	    bpf_skb_load_bytes(ctx, 6, sum.message.mac, 6))
		return -DROP_INVALID;
	if (bpf_skb_change_tail(ctx, L3 + sizeof(*ip) + sizeof(sum.message), 0))
		return -DROP_WRITE;
	copy6(sum.destination, packet->saddr);
	sum.length = bpf_htonl(sizeof(sum.message));
	sum.proto = bpf_htonl(IPPROTO_ICMPV6);
	sum.message.icmp.type = ICMP6_ADVERTISEMENT;
	((__u8 *)&sum.message.icmp.id)[0] = flags;
	copy6(sum.message.target, sum.source);
	sum.message.option = ND_TARGET_MAC;
	sum.message.option_length = 1;
	if (mac)
		copy_mac(sum.message.mac, mac);
	sum.message.icmp.checksum =
		fold_checksum(bpf_csum_diff(NULL, 0, (__be32 *)&sum, sizeof(sum), 0));

	ethernet = packet_bytes(ctx, 0, L3 + sizeof(*ip) + sizeof(sum.message));
	if (!ethernet)
		return -DROP_WRITE;
	ip = (void *)ethernet + L3;
	copy_mac(ethernet->destination, ethernet->source);
	copy_mac(ethernet->source, from);
	ip->length = bpf_htons(sizeof(sum.message));
	ip->hop_limit = 255;
	copy6(ip->source, sum.source);
	copy6(ip->destination, sum.destination);
	__builtin_memcpy(ip + 1, &sum.message, sizeof(sum.message));
	return bpf_redirect(ctx->ifindex, 0);
}

/* Replies to solicitations of the router, of pods and of the loopback address. Those of the node go
 * to the kernel. Returns a verdict.
 */
static __always_inline int reply_solicitation(CTX *ctx, const struct packet6 *packet,
					      const __u8 *mac, struct trace_ctx *trace,
					      int from_pod)
{
	const struct lxc_value *owner;
	__be32 target[4];

	if (bpf_skb_load_bytes(ctx, packet->l4 + 8, target, sizeof(target)))
		return FAIL(trace, DROP_INVALID);
	DEBUG(ctx, trace, DEBUG_SOLICITATION, target[2], target[3]);
	/* Solicitations are not forwarded (RFC 4861 7.1.1). */
	if (packet->hop_limit != 255)
		return FAIL(trace, DROP_INVALID);
	if (from_pod && same6(target, packet_options()->router6))
		return advertise(ctx, packet, mac, mac, ND_ROUTER | ND_SOLICITED);
	owner = lxc_lookup6(target);
	if (owner && !(owner->flags & LXC_HOST))
		return advertise(ctx, packet, mac, mac, ND_SOLICITED | ND_OVERRIDE);
	if (owner || !from_pod)
		return TC_ACT_OK;
	if (same6(target, packet_options()->loopback6))
		return advertise(ctx, packet, mac, NULL, ND_SOLICITED | ND_OVERRIDE);
	trace->source_identity = 0;
	return FAIL(trace, DROP_UNKNOWN_TARGET);
}

#endif /* PACKET_REPLY_H */
