/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The programs at the interface of the tunnel to other nodes. */
#define PACKET_OVERLAY
#include "packet/overlay.h"

const volatile struct node_options options = {};

/* What came by the tunnel. */
SEC("tc")
int cil_from_overlay(CTX *ctx)
{
	union work *work = this_work();
	int verdict = TC_ACT_OK;
	__u32 identity = 0;
	struct path *path;
	__be16 type;

	if (!work)
		return TC_ACT_SHOT;
	/* The path is at the beginning for both address families. */
	path = &work->v4.path;
	path_begin(path, options.packet.host_endpoint, 0, METRIC_INGRESS, METRIC_FILE_OVERLAY);
	type = ether_type(ctx);
	path->ipv6 = type == bpf_htons(ETH_P_IPV6);
	if (packet_tunnel_id(ctx, &identity))
		return finish(ctx, work, FAIL(path, DROP_NO_TUNNEL_KEY));
	DEBUG(ctx, path, DEBUG_DECAPSULATION, identity, 0);
	/* The identity of this node is invalid in packets of other nodes. */
	if (identity == IDENTITY_HOST)
		return finish(ctx, work, FAIL(path, DROP_IDENTITY));
	if (identity == IDENTITY_WORLD)
		identity = world_identity(options.packet.dual_stack, path->ipv6);
	path->source_identity = identity;
	ctx->mark &= ~MARK_MASK;
	COUNT_PACKET(ctx, REASON_PLAINTEXT, METRIC_INGRESS, METRIC_FILE_OVERLAY);
	trace_packet(ctx, path, TRACE_FROM_OVERLAY, ctx->ifindex, NULL);
	if (type == bpf_htons(ETH_P_IP) && options.ipv4)
		verdict = from_overlay4(ctx, &work->v4);
	else if (type == bpf_htons(ETH_P_IPV6) && options.ipv6)
		verdict = from_overlay6(ctx, &work->v6);
	verdict = after_family(ctx, work, verdict);
	if (verdict == GOES_BACK)
		verdict = go_back(ctx, work);
	return finish(ctx, work, verdict);
}

/* What is about to go by the tunnel. */
SEC("tc")
int cil_to_overlay(CTX *ctx)
{
	union work *work = this_work();
	__u32 mark = ctx->mark, identity = 0;
	struct path *path;
	__be16 type;

	if (!work)
		return TC_ACT_SHOT;
	path = &work->v4.path;
	path_begin(path, options.packet.host_endpoint, 0, METRIC_EGRESS, METRIC_FILE_OVERLAY);
	type = ether_type(ctx);
	path->ipv6 = type == bpf_htons(ETH_P_IPV6);
	if (packet_tunnel_id(ctx, &identity))
		return finish(ctx, work, FAIL(path, DROP_NO_TUNNEL_KEY));
	path->source_identity = identity;
	/* The packet around it has the same mark. */
	ctx->mark = mark_with_identity(mark & ~MARK_MASK, identity) | MARK_OVERLAY;
	if ((mark & MARK_MASK) == MARK_SNAT_DONE)
		return TC_ACT_OK;
	if (type == bpf_htons(ETH_P_IP) && options.ipv4)
		return finish(ctx, work, to_overlay4(ctx, &work->v4));
	if (type == bpf_htons(ETH_P_IPV6) && options.ipv6)
		return finish(ctx, work, to_overlay6(ctx, &work->v6));
	return TC_ACT_OK;
}

/* The kernel wants "GPL" in it for helpers that only GPL-compatible programs may call. */
char LICENSE[] SEC("license") = "Dual BSD/GPL";
