/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The program of interfaces of the node that runs before the kernel makes anything of a packet. */
#define PACKET_XDP
#include "packet/xdp.h"

const volatile struct node_options options = {};

SEC("xdp")
int cil_xdp_entry(struct xdp_md *ctx)
{
	union work *work = this_work();
	int verdict = XDP_PASS;
	struct path *path;
	__be16 type;

	if (!work)
		return XDP_PASS;
	type = ether_type(ctx);
	/* The path is at the beginning for both address families. */
	path = &work->v4.path;
	path_begin(path, 0, 0, METRIC_INGRESS, METRIC_FILE_XDP);
	if (type == bpf_htons(ETH_P_IP) && options.ipv4 && options.nodeport) {
		verdict = from_wire4(ctx, &work->v4);
	} else if (type == bpf_htons(ETH_P_IPV6) && options.ipv6 && options.nodeport) {
		path->ipv6 = 1;
		verdict = from_wire6(ctx, &work->v6);
	}
	if (verdict < 0)
		return drop_packet(ctx, path, -verdict);
	if (verdict == XDP_DONE) {
		tell_tc(ctx, METADATA_NO_SERVICE);
		return XDP_PASS;
	}
	return verdict;
}

/* The kernel wants "GPL" in it for helpers that only GPL-compatible programs may call. */
char LICENSE[] SEC("license") = "Dual BSD/GPL";
