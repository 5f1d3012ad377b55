/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The XDP program of devices. */
#define PACKET_XDP
#include "packet/xdp.h"

const volatile struct node_options options = {};

SEC("xdp")
int cil_xdp_entry(struct xdp_md *ctx)
{
	int verdict = options.nodeport ? flow_lookup(ctx, FLOW_XDP, 0) : FLOW_MISS;
	union scratch *scratch;
	struct trace_ctx *trace;
	__be16 type;

	if (verdict != FLOW_MISS)
		return verdict;
	verdict = XDP_PASS;
	scratch = this_scratch();
	if (!scratch)
		return XDP_PASS;
	type = ether_type(ctx);
	/* The trace context is the first member of both address families. */
	trace = &scratch->v4.trace;
	trace_begin(trace, 0, 0, METRIC_INGRESS, METRIC_FILE_XDP);
	if (type == bpf_htons(ETH_P_IP) && options.ipv4 && options.nodeport) {
		verdict = from_wire4(ctx, &scratch->v4);
	} else if (type == bpf_htons(ETH_P_IPV6) && options.ipv6 && options.nodeport) {
		trace->ipv6 = 1;
		verdict = from_wire6(ctx, &scratch->v6);
	}
	if (options.nodeport)
		flow_end(ctx, verdict);
	if (verdict < 0)
		return drop_packet(ctx, trace, -verdict);
	if (verdict == XDP_DONE) {
		set_xdp_metadata(ctx, METADATA_NO_SERVICE);
		return XDP_PASS;
	}
	return verdict;
}

/* The kernel wants "GPL" in it for helpers that only GPL-compatible programs may call. */
char LICENSE[] SEC("license") = "Dual BSD/GPL";
