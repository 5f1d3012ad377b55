/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The programs at interfaces: of pods, of the node, and of the pair that joins the two. One set
 * serves all interfaces: what differs between them is in maps.
 */
#include "packet/family.h"
#include "packet/probe.h"
#include "packet/to_container.h"
#include "packet/vlan.h"

const volatile struct node_options options = {};

/* What a pod sends, at the interface on this side. */
SEC("tc")
int cil_from_container(CTX *ctx)
{
	__u32 ifindex = ctx->ifindex;
	const struct endpoint *sender = bpf_map_lookup_elem(&skep_endpoints, &ifindex);
	union work *work = this_work();
	struct path *path;
	int verdict;
	__be16 type;

	if (!work)
		return TC_ACT_SHOT;
	/* The path is at the beginning for both address families. */
	path = &work->v4.path;
	if (!sender) {
		path_begin(path, 0, 0, METRIC_EGRESS, METRIC_FILE_LXC);
		return finish(ctx, work, FAIL(path, DROP_NO_CONFIG));
	}
	path_begin(path, sender->id, sender->identity, METRIC_EGRESS, METRIC_FILE_LXC);
	type = ether_type(ctx);
	path->ipv6 = type == bpf_htons(ETH_P_IPV6);
	trace_packet(ctx, path, TRACE_FROM_ENDPOINT, 0, NULL);
	switch (type) {
	case bpf_htons(ETH_P_IP):
		if (!options.ipv4)
			goto unsupported;
		work->v4.sender = *sender;
		verdict = send4(ctx, &work->v4);
		break;
	case bpf_htons(ETH_P_IPV6):
		if (!options.ipv6)
			goto unsupported;
		work->v6.sender = *sender;
		verdict = send6(ctx, &work->v6);
		break;
	case bpf_htons(ETH_P_ARP):
		verdict = answer_arp(ctx, sender);
		break;
	default:
	unsupported:
		/* No policy knows it. */
		verdict = FAIL(path, DROP_UNSUPPORTED_L3);
	}
	return finish(ctx, work, after_family(ctx, work, verdict));
}

/* What leaves by the interface of a pod, towards it. */
SEC("tc")
int cil_to_container(CTX *ctx)
{
	__u32 ifindex = ctx->ifindex, mark = ctx->mark;
	const struct endpoint *receiver = bpf_map_lookup_elem(&skep_endpoints, &ifindex);
	union work *work = this_work();
	struct path *path;
	__u32 identity;
	int verdict;
	__be16 type;

	if (!work)
		return TC_ACT_SHOT;
	path = &work->v4.path;
	if (!receiver) {
		path_begin(path, 0, 0, METRIC_INGRESS, METRIC_FILE_LXC);
		return finish(ctx, work, FAIL(path, DROP_NO_CONFIG));
	}
	/* Whoever sent it here has asked the policy; or cil_from_container answers the pod. */
	if (!(receiver->flags & ENDPOINT_EGRESS_PROGRAM) || ctx->ingress_ifindex == ifindex)
		return TC_ACT_OK;
	type = ether_type(ctx);
	identity = sender_of_mark(mark);
	if (!identity)
		identity = world_identity(options.packet.dual_stack, type == bpf_htons(ETH_P_IPV6));
	path_begin(path, receiver->id, identity, METRIC_INGRESS, METRIC_FILE_LXC);
	path->ipv6 = type == bpf_htons(ETH_P_IPV6);
	path->destination = receiver->id;
	path->destination_identity = receiver->identity;
	ctx->mark = 0;
	switch (type) {
	case bpf_htons(ETH_P_IP):
		if (!options.ipv4)
			goto unsupported;
		verdict = to_endpoint4(ctx, &work->v4, delivery_of_mark(mark));
		break;
	case bpf_htons(ETH_P_IPV6):
		if (!options.ipv6)
			goto unsupported;
		verdict = to_endpoint6(ctx, &work->v6, delivery_of_mark(mark));
		break;
	case bpf_htons(ETH_P_ARP):
		return TC_ACT_OK;
	default:
	unsupported:
		/* No policy knows it. */
		verdict = FAIL(path, DROP_UNSUPPORTED_L3);
	}
	return finish(ctx, work, verdict);
}

/* What an interface of the node receives. */
SEC("tc")
int cil_from_netdev(CTX *ctx)
{
	__u32 ifindex = ctx->ifindex;
	union work *work = this_work();
	const struct device *device;
	int verdict = TC_ACT_OK;
	struct path *path;
	__be16 type;

	if (!work)
		return TC_ACT_SHOT;
	path = &work->v4.path;
	path_begin(path, options.packet.host_endpoint, 0, METRIC_INGRESS, METRIC_FILE_HOST);
	if (vlan_tagged(ctx))
		return finish(ctx, work, filter_vlan(ctx, path));
	COUNT_PACKET(ctx, REASON_PLAINTEXT, METRIC_INGRESS, METRIC_FILE_HOST);
	device = bpf_map_lookup_elem(&skep_devices, &ifindex);
	if (!device || (device->flags & DEVICE_L3))
		return TC_ACT_OK;
	type = ether_type(ctx);
	if (type == bpf_htons(ETH_P_IP) && options.ipv4) {
		work->v4.device = *device;
		if (options.packet.ipip_termination)
			verdict = unpack4(ctx, &work->v4);
		if (verdict < 0)
			return finish(ctx, work, verdict);
		trace_from_network4(ctx, path);
		verdict = from_network4(ctx, &work->v4);
	} else if (type == bpf_htons(ETH_P_IPV6) && options.ipv6) {
		path->ipv6 = 1;
		work->v6.device = *device;
		if (options.packet.ipip_termination)
			verdict = unpack6(ctx, &work->v6);
		if (verdict < 0)
			return finish(ctx, work, verdict);
		trace_from_network6(ctx, path);
		verdict = from_network6(ctx, &work->v6);
	}
	verdict = after_family(ctx, work, verdict);
	/* Rewritten, and left to the routes of the kernel. */
	if (verdict == TC_ACT_PIPE)
		verdict = TC_ACT_OK;
	return finish(ctx, work, verdict);
}

/* What leaves by an interface of the node. */
SEC("tc")
int cil_to_netdev(CTX *ctx)
{
	__u32 ifindex = ctx->ifindex, mark = ctx->mark & MARK_MASK;
	const struct device *device = NULL;
	union work *work = this_work();
	struct path *path;
	int verdict = 0;
	__be16 type;

	if (!work)
		return TC_ACT_SHOT;
	path = &work->v4.path;
	path_begin(path, options.packet.host_endpoint, marked_identity(ctx->mark), METRIC_EGRESS,
		   METRIC_FILE_HOST);
	type = ether_type(ctx);
	path->ipv6 = type == bpf_htons(ETH_P_IPV6);
	if (vlan_tagged(ctx))
		return finish(ctx, work, filter_vlan(ctx, path));
	/* What the tunnel sends was translated before. */
	if (mark != MARK_SNAT_DONE && !(options.packet.tunnel && mark == MARK_OVERLAY))
		device = bpf_map_lookup_elem(&skep_devices, &ifindex);
	if (device && !(device->flags & DEVICE_L3)) {
		if (type == bpf_htons(ETH_P_IP) && options.ipv4) {
			work->v4.device = *device;
			if (options.packet.health_probes)
				verdict = send_probe4(ctx, &work->v4);
			if (verdict)
				return finish(ctx, work, verdict);
			return finish(ctx, work, to_network4(ctx, &work->v4));
		}
		if (type == bpf_htons(ETH_P_IPV6) && options.ipv6) {
			work->v6.device = *device;
			if (options.packet.health_probes)
				verdict = send_probe6(ctx, &work->v6);
			if (verdict)
				return finish(ctx, work, verdict);
			return finish(ctx, work,
				      after_family(ctx, work, to_network6(ctx, &work->v6)));
		}
	}
	COUNT_PACKET(ctx, REASON_FORWARDED, METRIC_EGRESS, METRIC_FILE_HOST);
	trace_packet(ctx, path, TRACE_TO_NETWORK, ctx->ifindex, NULL);
	return TC_ACT_OK;
}

/* What the node sends to pods. */
SEC("tc")
int cil_from_host(CTX *ctx)
{
	union work *work = this_work();
	__u32 mark = ctx->mark;
	int verdict = TC_ACT_OK;
	struct path *path;
	__be16 type;

	if (!work)
		return TC_ACT_SHOT;
	path = &work->v4.path;
	path_begin(path, options.packet.host_endpoint, sender_of_mark(mark), METRIC_INGRESS,
		   METRIC_FILE_HOST);
	type = ether_type(ctx);
	ctx->mark = 0;
	path->ipv6 = type == bpf_htons(ETH_P_IPV6);
	if (path->source_identity)
		DEBUG(ctx, path, DEBUG_INHERIT_IDENTITY, path->source_identity, 0);
	else
		path->source_identity = world_identity(options.packet.dual_stack, path->ipv6);
	if (!is_from_proxy(mark))
		COUNT_PACKET(ctx, REASON_PLAINTEXT, METRIC_INGRESS, METRIC_FILE_HOST);
	trace_packet(ctx, path, is_from_proxy(mark) ? TRACE_FROM_PROXY : TRACE_FROM_HOST, 0, NULL);
	if (type == bpf_htons(ETH_P_IP) && options.ipv4)
		verdict = from_host4(ctx, &work->v4, mark);
	else if (type == bpf_htons(ETH_P_IPV6) && options.ipv6)
		verdict = from_host6(ctx, &work->v6, mark);
	return finish(ctx, work, verdict);
}

/* What pods send to the node. */
SEC("tc")
int cil_to_host(CTX *ctx)
{
	union work *work = this_work();
	struct path *path;

	if (!work)
		return TC_ACT_SHOT;
	path = &work->v4.path;
	path_begin(path, options.packet.host_endpoint,
		   (ctx->mark & MARK_MASK) == MARK_IDENTITY ? identity_of_mark(ctx->mark) : 0,
		   METRIC_EGRESS, METRIC_FILE_HOST);
	path->ipv6 = ether_type(ctx) == bpf_htons(ETH_P_IPV6);
	COUNT_PACKET(ctx, REASON_FORWARDED, METRIC_EGRESS, METRIC_FILE_HOST);
	trace_packet(ctx, path, TRACE_TO_STACK, options.packet.cilium_host, NULL);
	return TC_ACT_OK;
}

/* The kernel wants "GPL" in it for helpers that only GPL-compatible programs may call. */
char LICENSE[] SEC("license") = "Dual BSD/GPL";
