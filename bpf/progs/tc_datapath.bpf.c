/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Programs at interfaces of pods, devices, cilium_host and cilium_net. One set serves all
 * interfaces; per-interface configuration is in maps.
 */
#include "packet/family.h"
#include "packet/probe.h"
#include "packet/to_container.h"
#include "packet/vlan.h"

const volatile struct node_options options = {};

/* The host firewall on a packet with an identity in its mark, or 0. Returns 0 to continue, less: a
 * drop reason, or a verdict.
 */
static __always_inline int firewall(CTX *ctx, union scratch *scratch, __be16 type, __u32 marked,
				    __u32 ingress)
{
	if (!options.packet.host_firewall)
		return 0;
	if (type == bpf_htons(ETH_P_IP))
		return options.ipv4 ? check_host4(ctx, &scratch->v4, marked, ingress) : 0;
	if (type == bpf_htons(ETH_P_IPV6))
		return options.ipv6 ? check_host6(ctx, &scratch->v6, marked, ingress) : 0;
	return 0;
}

/* Frames of other protocols than IP and ARP pass the host firewall only while its policy is open.
 * Returns 0 to continue, or less: a drop reason.
 */
static __always_inline int firewall_l2(struct trace_ctx *trace, __be16 type, __u8 open)
{
	const struct endpoint *host;

	if (!options.packet.host_firewall || type == bpf_htons(ETH_P_IP) ||
	    type == bpf_htons(ETH_P_IPV6) || type == bpf_htons(ETH_P_ARP))
		return 0;
	host = host_endpoint();
	if (!host || (host->flags & (open | ENDPOINT_AUDIT)))
		return 0;
	return FAIL(trace,
		    bpf_ntohs(type) < ETH_P_802_3_MIN ? DROP_UNSUPPORTED_L2 : DROP_UNSUPPORTED_L3);
}

/* Egress of a pod, at the host side of its interface. */
SEC("tc")
int cil_from_container(CTX *ctx)
{
	__u32 ifindex = ctx->ifindex;
	const struct endpoint *sender;
	union scratch *scratch;
	struct trace_ctx *trace;
	int verdict;
	__be16 type;

	verdict = flow_lookup(ctx, FLOW_INGRESS, 0);
	if (verdict != FLOW_MISS)
		return verdict;
	sender = bpf_map_lookup_elem(&skep_endpoints, &ifindex);
	scratch = this_scratch();
	if (!scratch)
		return TC_ACT_SHOT;
	/* The trace context is the first member of both address families. */
	trace = &scratch->v4.trace;
	if (!sender) {
		trace_begin(trace, 0, 0, METRIC_EGRESS, METRIC_FILE_LXC);
		return finish(ctx, scratch, FAIL(trace, DROP_NO_CONFIG));
	}
	trace_begin(trace, sender->id, sender->identity, METRIC_EGRESS, METRIC_FILE_LXC);
	trace_as(trace, sender->events);
	if (options.packet.bandwidth)
		ctx->queue_mapping = sender->id;
	type = ether_type(ctx);
	trace->ipv6 = type == bpf_htons(ETH_P_IPV6);
	trace_packet(ctx, trace, TRACE_FROM_ENDPOINT, 0, NULL);
	switch (type) {
	case bpf_htons(ETH_P_IP):
		if (!options.ipv4)
			goto unsupported;
		scratch->v4.sender = *sender;
		verdict = send4(ctx, &scratch->v4);
		break;
	case bpf_htons(ETH_P_IPV6):
		if (!options.ipv6)
			goto unsupported;
		scratch->v6.sender = *sender;
		verdict = send6(ctx, &scratch->v6);
		break;
	case bpf_htons(ETH_P_ARP):
		verdict = reply_arp(ctx, sender);
		break;
	default:
	unsupported:
		/* Not covered by policies. */
		verdict = FAIL(trace, DROP_UNSUPPORTED_L3);
	}
	verdict = continue_translated(ctx, scratch, verdict);
	flow_end(ctx, verdict);
	return finish(ctx, scratch, verdict);
}

/* Ingress of a pod, at the host side of its interface. */
SEC("tc")
int cil_to_container(CTX *ctx)
{
	__u32 ifindex = ctx->ifindex, mark = ctx->mark;
	const struct endpoint *receiver = bpf_map_lookup_elem(&skep_endpoints, &ifindex);
	union scratch *scratch = this_scratch();
	struct trace_ctx *trace;
	__u32 identity;
	int verdict;
	__be16 type;

	if (!scratch)
		return TC_ACT_SHOT;
	trace = &scratch->v4.trace;
	if (!receiver) {
		trace_begin(trace, 0, 0, METRIC_INGRESS, METRIC_FILE_LXC);
		return finish(ctx, scratch, FAIL(trace, DROP_NO_CONFIG));
	}
	/* The policy was enforced by the sender; or it is a reply of cil_from_container. */
	if (!(receiver->flags & ENDPOINT_EGRESS_PROGRAM) || ctx->ingress_ifindex == ifindex)
		return TC_ACT_OK;
	type = ether_type(ctx);
	identity = sender_of_mark(mark);
	if (!identity)
		identity = world_identity(options.packet.dual_stack, type == bpf_htons(ETH_P_IPV6));
	trace_begin(trace, receiver->id, identity, METRIC_INGRESS, METRIC_FILE_LXC);
	trace_as(trace, receiver->events);
	trace->ipv6 = type == bpf_htons(ETH_P_IPV6);
	trace->destination = receiver->id;
	trace->destination_identity = receiver->identity;
	ctx->mark = 0;
	switch (type) {
	case bpf_htons(ETH_P_IP):
		if (!options.ipv4)
			goto unsupported;
		verdict = to_endpoint4(ctx, &scratch->v4, delivery_of_mark(mark));
		break;
	case bpf_htons(ETH_P_IPV6):
		if (!options.ipv6)
			goto unsupported;
		verdict = to_endpoint6(ctx, &scratch->v6, delivery_of_mark(mark));
		break;
	case bpf_htons(ETH_P_ARP):
		return TC_ACT_OK;
	default:
	unsupported:
		/* Not covered by policies. */
		verdict = FAIL(trace, DROP_UNSUPPORTED_L3);
	}
	return finish(ctx, scratch, verdict);
}

/* Ingress of a device. */
SEC("tc")
int cil_from_netdev(CTX *ctx)
{
	__u32 ifindex = ctx->ifindex;
	union scratch *scratch = this_scratch();
	const struct device *device;
	int verdict = TC_ACT_OK;
	struct trace_ctx *trace;
	__be16 type;

	if (!scratch)
		return TC_ACT_SHOT;
	trace = &scratch->v4.trace;
	trace_begin(trace, options.packet.host_endpoint, 0, METRIC_INGRESS, METRIC_FILE_HOST);
	throttle_clear(ctx);
	if (vlan_tagged(ctx))
		return finish(ctx, scratch, filter_vlan(ctx, trace));
	verdict = flow_lookup(ctx, FLOW_INGRESS, xdp_metadata(ctx));
	if (verdict != FLOW_MISS)
		return verdict;
	COUNT_PACKET(ctx, REASON_PLAINTEXT, METRIC_INGRESS, METRIC_FILE_HOST);
	device = bpf_map_lookup_elem(&skep_devices, &ifindex);
	if (!device || (device->flags & DEVICE_L3))
		return TC_ACT_OK;
	type = ether_type(ctx);
	verdict = firewall_l2(trace, type, ENDPOINT_OPEN_INGRESS);
	if (verdict)
		return finish(ctx, scratch, verdict);
	if (type == bpf_htons(ETH_P_IP) && options.ipv4) {
		scratch->v4.device = *device;
		if (options.packet.ipip_termination)
			verdict = decapsulate4(ctx, &scratch->v4);
		if (verdict < 0)
			return finish(ctx, scratch, verdict);
		trace_from_network4(ctx, trace);
		verdict = from_network4(ctx, &scratch->v4);
	} else if (type == bpf_htons(ETH_P_IPV6) && options.ipv6) {
		trace->ipv6 = 1;
		scratch->v6.device = *device;
		if (options.packet.ipip_termination)
			verdict = decapsulate6(ctx, &scratch->v6);
		if (verdict < 0)
			return finish(ctx, scratch, verdict);
		trace_from_network6(ctx, trace);
		verdict = from_network6(ctx, &scratch->v6);
	}
	verdict = continue_translated(ctx, scratch, verdict);
	/* Translated, and routed by the kernel. */
	if (verdict == TO_STACK)
		verdict = TC_ACT_OK;
	flow_end(ctx, verdict);
	return finish(ctx, scratch, verdict);
}

/* Egress of a device. */
SEC("tc")
int cil_to_netdev(CTX *ctx)
{
	__u32 ifindex = ctx->ifindex, mark = ctx->mark & MARK_MASK;
	const struct device *device = NULL;
	union scratch *scratch = this_scratch();
	struct trace_ctx *trace;
	int verdict = 0;
	__be16 type;

	if (!scratch)
		return TC_ACT_SHOT;
	trace = &scratch->v4.trace;
	trace_begin(trace, options.packet.host_endpoint, marked_identity(ctx->mark), METRIC_EGRESS,
		    METRIC_FILE_HOST);
	type = ether_type(ctx);
	trace->ipv6 = type == bpf_htons(ETH_P_IPV6);
	if (vlan_tagged(ctx))
		return finish(ctx, scratch, filter_vlan(ctx, trace));
	verdict = flow_lookup(ctx, FLOW_EGRESS, 0);
	if (verdict != FLOW_MISS)
		return verdict;
	verdict = 0;
	if (mark != MARK_SNAT_DONE) {
		verdict = firewall_l2(trace, type, ENDPOINT_OPEN_EGRESS);
		if (!verdict)
			verdict = firewall(ctx, scratch, type,
					   filtered_identity(mark, trace->source_identity), 0);
		if (verdict)
			return finish(ctx, scratch, verdict);
	}
	if (!throttle_egress(ctx)) {
		COUNT_PACKET(ctx, DROP_EDT_HORIZON, METRIC_EGRESS, METRIC_FILE_HOST);
		return TC_ACT_SHOT;
	}
	/* Encapsulated packets are already translated. */
	if (mark != MARK_SNAT_DONE && !(options.packet.tunnel && mark == MARK_OVERLAY))
		device = bpf_map_lookup_elem(&skep_devices, &ifindex);
	if (device && !(device->flags & DEVICE_L3)) {
		if (type == bpf_htons(ETH_P_IP) && options.ipv4) {
			scratch->v4.device = *device;
			if (options.packet.health_probes)
				verdict = send_probe4(ctx, &scratch->v4);
			if (verdict)
				return finish(ctx, scratch, verdict);
			verdict = to_network4(ctx, &scratch->v4);
			flow_end(ctx, verdict);
			return finish(ctx, scratch, verdict);
		}
		if (type == bpf_htons(ETH_P_IPV6) && options.ipv6) {
			scratch->v6.device = *device;
			if (options.packet.health_probes)
				verdict = send_probe6(ctx, &scratch->v6);
			if (verdict)
				return finish(ctx, scratch, verdict);
			verdict = continue_translated(ctx, scratch, to_network6(ctx, &scratch->v6));
			flow_end(ctx, verdict);
			return finish(ctx, scratch, verdict);
		}
	}
	COUNT_PACKET(ctx, REASON_FORWARDED, METRIC_EGRESS, METRIC_FILE_HOST);
	trace_packet(ctx, trace, TRACE_TO_NETWORK, ctx->ifindex, NULL);
	return TC_ACT_OK;
}

/* Packets of the node to pods. */
SEC("tc")
int cil_from_host(CTX *ctx)
{
	union scratch *scratch = this_scratch();
	__u32 mark = ctx->mark;
	int verdict = TC_ACT_OK;
	struct trace_ctx *trace;
	__be16 type;

	if (!scratch)
		return TC_ACT_SHOT;
	trace = &scratch->v4.trace;
	trace_begin(trace, options.packet.host_endpoint, sender_of_mark(mark), METRIC_INGRESS,
		    METRIC_FILE_HOST);
	type = ether_type(ctx);
	ctx->mark = 0;
	trace->ipv6 = type == bpf_htons(ETH_P_IPV6);
	if (trace->source_identity)
		DEBUG(ctx, trace, DEBUG_INHERIT_IDENTITY, trace->source_identity, 0);
	else
		trace->source_identity = world_identity(options.packet.dual_stack, trace->ipv6);
	if (!is_from_proxy(mark))
		COUNT_PACKET(ctx, REASON_PLAINTEXT, METRIC_INGRESS, METRIC_FILE_HOST);
	trace_packet(ctx, trace, is_from_proxy(mark) ? TRACE_FROM_PROXY : TRACE_FROM_HOST, 0, NULL);
	if (type == bpf_htons(ETH_P_IP) && options.ipv4)
		verdict = from_host4(ctx, &scratch->v4, mark);
	else if (type == bpf_htons(ETH_P_IPV6) && options.ipv6)
		verdict = from_host6(ctx, &scratch->v6, mark);
	return finish(ctx, scratch, verdict);
}

/* Packets of pods to the node. */
SEC("tc")
int cil_to_host(CTX *ctx)
{
	union scratch *scratch = this_scratch();
	struct trace_ctx *trace;
	int verdict;
	__be16 type;

	if (!scratch)
		return TC_ACT_SHOT;
	trace = &scratch->v4.trace;
	trace_begin(trace, options.packet.host_endpoint,
		    (ctx->mark & MARK_MASK) == MARK_IDENTITY ? identity_of_mark(ctx->mark) : 0,
		    METRIC_EGRESS, METRIC_FILE_HOST);
	type = ether_type(ctx);
	trace->ipv6 = type == bpf_htons(ETH_P_IPV6);
	if (options.packet.host_firewall && (ctx->mark & MARK_MASK) == MARK_TO_PROXY) {
		trace->source_identity = IDENTITY_HOST;
		if (type == bpf_htons(ETH_P_IP) && options.ipv4)
			return finish(ctx, scratch, host_to_proxy4(ctx, &scratch->v4));
		if (type == bpf_htons(ETH_P_IPV6) && options.ipv6)
			return finish(ctx, scratch, host_to_proxy6(ctx, &scratch->v6));
	}
	verdict = firewall(ctx, scratch, type, trace->source_identity, 1);
	if (verdict)
		return finish(ctx, scratch, verdict);
	COUNT_PACKET(ctx, REASON_FORWARDED, METRIC_EGRESS, METRIC_FILE_HOST);
	trace_packet(ctx, trace, TRACE_TO_STACK, options.packet.cilium_host, NULL);
	return TC_ACT_OK;
}

/* The kernel wants "GPL" in it for helpers that only GPL-compatible programs may call. */
char LICENSE[] SEC("license") = "Dual BSD/GPL";
