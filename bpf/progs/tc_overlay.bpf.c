/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The programs at the interface of the tunnel to other nodes. */
#define PACKET_OVERLAY
#include "packet/overlay.h"

const volatile struct node_options options = {};

/* Ingress of the tunnel. */
SEC("tc")
int cil_from_overlay(CTX *ctx)
{
	union scratch *scratch = this_scratch();
	int verdict = TC_ACT_OK;
	__u32 identity = 0;
	struct trace_ctx *trace;
	__be16 type;

	if (!scratch)
		return TC_ACT_SHOT;
	/* The trace context is the first member of both address families. */
	trace = &scratch->v4.trace;
	trace_begin(trace, options.packet.host_endpoint, 0, METRIC_INGRESS, METRIC_FILE_OVERLAY);
	throttle_clear(ctx);
	type = ether_type(ctx);
	trace->ipv6 = type == bpf_htons(ETH_P_IPV6);
	if (packet_tunnel_id(ctx, &identity))
		return finish(ctx, scratch, FAIL(trace, DROP_NO_TUNNEL_KEY));
	DEBUG(ctx, trace, DEBUG_DECAPSULATION, identity, 0);
	/* The identity of this node is invalid in packets of other nodes. */
	if (identity == IDENTITY_HOST)
		return finish(ctx, scratch, FAIL(trace, DROP_IDENTITY));
	verdict = flow_lookup(ctx, FLOW_INGRESS, identity);
	if (verdict != FLOW_MISS)
		return verdict;
	verdict = TC_ACT_OK;
	if (identity == IDENTITY_WORLD)
		identity = world_identity(options.packet.dual_stack, trace->ipv6);
	trace->source_identity = identity;
	ctx->mark &= ~MARK_MASK;
	COUNT_PACKET(ctx, REASON_PLAINTEXT, METRIC_INGRESS, METRIC_FILE_OVERLAY);
	trace_packet(ctx, trace, TRACE_FROM_OVERLAY, ctx->ifindex, NULL);
	if (type == bpf_htons(ETH_P_IP) && options.ipv4)
		verdict = from_overlay4(ctx, &scratch->v4);
	else if (type == bpf_htons(ETH_P_IPV6) && options.ipv6)
		verdict = from_overlay6(ctx, &scratch->v6);
	verdict = continue_translated(ctx, scratch, verdict);
	if (verdict == REDIRECT_BACK)
		verdict = redirect_back(ctx, scratch);
	flow_end(ctx, verdict);
	return finish(ctx, scratch, verdict);
}

/* Egress of the tunnel. */
SEC("tc")
int cil_to_overlay(CTX *ctx)
{
	union scratch *scratch = this_scratch();
	__u32 mark = ctx->mark, identity = 0;
	struct trace_ctx *trace;
	__be16 type;

	if (!scratch)
		return TC_ACT_SHOT;
	trace = &scratch->v4.trace;
	trace_begin(trace, options.packet.host_endpoint, 0, METRIC_EGRESS, METRIC_FILE_OVERLAY);
	type = ether_type(ctx);
	trace->ipv6 = type == bpf_htons(ETH_P_IPV6);
	if (packet_tunnel_id(ctx, &identity))
		return finish(ctx, scratch, FAIL(trace, DROP_NO_TUNNEL_KEY));
	trace->source_identity = identity;
	if (!throttle_egress(ctx)) {
		COUNT_PACKET(ctx, DROP_EDT_HORIZON, METRIC_EGRESS, METRIC_FILE_OVERLAY);
		return TC_ACT_SHOT;
	}
	/* The outer packet has the same mark. */
	ctx->mark = mark_with_identity(mark & ~MARK_MASK, identity) | MARK_OVERLAY;
	if ((mark & MARK_MASK) == MARK_SNAT_DONE)
		return TC_ACT_OK;
	if (type == bpf_htons(ETH_P_IP) && options.ipv4)
		return finish(ctx, scratch, to_overlay4(ctx, &scratch->v4));
	if (type == bpf_htons(ETH_P_IPV6) && options.ipv6)
		return finish(ctx, scratch, to_overlay6(ctx, &scratch->v6));
	return TC_ACT_OK;
}

/* The kernel wants "GPL" in it for helpers that only GPL-compatible programs may call. */
char LICENSE[] SEC("license") = "Dual BSD/GPL";
