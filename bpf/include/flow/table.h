/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Lookups in the flow table at the head of a program, and records at its end. */
#ifndef FLOW_TABLE_H
#define FLOW_TABLE_H

#include <linux/if_packet.h>

#include "../event/packet_event.h"
#include "../packet/rewrite.h"
#include "../packet/tunnel.h"
#include "note.h"

/* No verdict: the packet passes the program. */
#define FLOW_MISS 0x200

/* The packet passes the program without notes. */
static __noinline void flow_skip(__u32 cause, __u32 plan)
{
	struct flow_note *note = this_flow_note();

	if (note)
		note->plan = plan;
	flow_tally(cause);
}

/* Mark of the packet. */
#ifdef PACKET_XDP
#define FLOW_MARK(ctx_) 0
#else
#define FLOW_MARK(ctx_) ((ctx_)->mark)
#endif

/* Payload of a segment with GSO, or 0. */
#ifdef PACKET_XDP
#define FLOW_SEGMENT(ctx_) 0
#else
#define FLOW_SEGMENT(ctx_) ((ctx_)->gso_size)
#endif

/* L3 length of the packet, or of a segment; `header` is the length of its headers. */
static __always_inline __u16 flow_length(CTX *ctx, __u32 header)
{
	__u32 segment = FLOW_SEGMENT(ctx);
	__u32 length = segment ? header + segment : packet_length(ctx) - L3;

	return length < FLOW_ANY_LENGTH ? length : FLOW_ANY_LENGTH - 1;
}

/* Counts a packet of a recorded flow. */
static __always_inline void flow_count(CTX *ctx, const struct metrics_key *key)
{
	struct metrics_value *value = bpf_map_lookup_elem(&cilium_metrics, key);

	if (LIKELY(value)) {
		value->count++;
		value->bytes += packet_length(ctx);
		return;
	}
	count_bytes(key->reason, key->direction, key->line, key->file, packet_length(ctx));
}

#ifndef PACKET_XDP
static __always_inline void flow_count_policy(CTX *ctx, const struct policy_stats_key *key)
{
	struct policy_stats first = {.packets = 1, .bytes = packet_length(ctx)};
	struct policy_stats *stats = bpf_map_lookup_elem(&cilium_policystats, key);

	if (LIKELY(stats)) {
		stats->packets++;
		stats->bytes += packet_length(ctx);
		return;
	}
	bpf_map_update_elem(&cilium_policystats, key, &first, BPF_NOEXIST);
}
#endif

/* The counters of a recorded flow. */
static __always_inline void flow_count_all(CTX *ctx, const struct flow *flow)
{
	if (flow->counters > 0)
		flow_count(ctx, &flow->counted[0]);
	if (flow->counters > 1)
		flow_count(ctx, &flow->counted[1]);
	if (flow->counters > 2)
		flow_count(ctx, &flow->counted[2]);
#ifndef PACKET_XDP
	if (flow->policies > 0)
		flow_count_policy(ctx, &flow->allowed[0]);
	if (flow->policies > 1)
		flow_count_policy(ctx, &flow->allowed[1]);
#endif
}

/* Sends the packet as recorded. Returns a verdict of the kernel. */
static __always_inline int flow_send(CTX *ctx, const struct flow *flow)
{
#ifdef PACKET_XDP
	switch (flow->exit) {
	case FLOW_PASS:
		set_xdp_metadata(ctx, METADATA_NO_SERVICE);
		return XDP_PASS;
	case FLOW_TX:
		return XDP_TX;
	case FLOW_REDIRECT:
		return bpf_redirect(flow->ifindex, 0);
	}
	return XDP_DROP;
#else
	struct bpf_redir_neigh next = {};
	struct bpf_tunnel_key key = {};

	switch (flow->exit) {
	case FLOW_PASS:
		return TC_ACT_OK;
	case FLOW_REDIRECT:
		return bpf_redirect(flow->ifindex, flow->redirect_flags);
	case FLOW_PEER:
		/* The inner frame has a MAC address of the other node. */
		if (FROM_TUNNEL)
			bpf_skb_change_type(ctx, PACKET_HOST);
		return bpf_redirect_peer(flow->ifindex, 0);
	case FLOW_NEIGHBOUR:
		next.nh_family = flow->next_family;
		copy6((__be32 *)&next.ipv6_nh, flow->next);
		return bpf_redirect_neigh(flow->ifindex, &next, sizeof(next), 0);
	case FLOW_TUNNEL:
		if (!options.packet.tunnel)
			break;
		key.tunnel_ttl = TUNNEL_TTL;
		key.tunnel_id = flow->tunnel_id;
		if (flow->next_family)
			copy6(key.remote_ipv6, flow->next);
		else
			key.remote_ipv4 = bpf_ntohl(flow->next[0]);
		if (bpf_skb_set_tunnel_key(ctx, &key, TUNNEL_KEY_SIZE,
					   flow->next_family ? BPF_F_TUNINFO_IPV6
							     : BPF_F_ZERO_CSUM_TX))
			break;
		return bpf_redirect(flow->ifindex, 0);
	}
	return TC_ACT_SHOT;
#endif
}

/* The packet is dropped: if it has changed entries, the replies are unknown. */
static __always_inline void flow_end_unsent(const struct flow_note *note)
{
	if (note->plan == FLOW_REMOVE)
		flow_raise_epoch();
}

#define AF 4
#include "table.inc.h"
#undef AF
#define AF 6
#include "table.inc.h"
#undef AF

/* Looks up the flow of the packet. Returns a verdict of the kernel, or FLOW_MISS. */
static __always_inline int flow_lookup(CTX *ctx, enum flow_hook hook, __u32 input)
{
	__be16 type;

	if (!options.packet.flows)
		return FLOW_MISS;
	type = ether_type(ctx);
	if (type == bpf_htons(ETH_P_IP) && options.ipv4)
		return flow_lookup4(ctx, hook, input);
	if (type == bpf_htons(ETH_P_IPV6) && options.ipv6)
		return flow_lookup6(ctx, hook, input);
	flow_skip(FLOW_NOT_PLAIN, FLOW_NOTHING);
	return FLOW_MISS;
}

/* Records or removes the flow of the packet, which leaves the program with this verdict. */
static __always_inline void flow_end(CTX *ctx, int verdict)
{
	const struct flow_note *note;

	if (!options.packet.flows)
		return;
	note = this_flow_note();
	if (!note || !note->plan || note->plan == FLOW_STRANGE)
		return;
	if (verdict < 0) {
		flow_end_unsent(note);
		return;
	}
	if (!note->ipv6 && options.ipv4)
		flow_end4(ctx, verdict);
	else if (note->ipv6 && options.ipv6)
		flow_end6(ctx, verdict);
}

#endif /* FLOW_TABLE_H */
