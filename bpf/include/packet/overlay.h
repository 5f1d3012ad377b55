/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Packets at the tunnel device. */
#ifndef PACKET_OVERLAY_H
#define PACKET_OVERLAY_H

#include "host.h"

/* Redirects the packet to the ingress of `cilium_host`. */
static __always_inline int redirect_to_host(CTX *ctx, const struct trace_ctx *trace)
{
	__u32 host = options.packet.cilium_host;
	const struct device *device = bpf_map_lookup_elem(&skep_devices, &host);
	struct ethernet *ethernet = packet_bytes(ctx, 0, sizeof(*ethernet));
	struct flow *flow;

	if (options.packet.identity_mark)
		ctx->mark = mark_with_identity(ctx->mark & ~MARK_MASK, trace->source_identity) |
			    MARK_IDENTITY;
	if (!device || !ethernet) {
		flow_stop();
		bpf_skb_change_type(ctx, PACKET_HOST);
		return TC_ACT_OK;
	}
	copy_mac(ethernet->source, device->mac);
	copy_mac(ethernet->destination, device->mac);
	flow = flow_note_exit(FLOW_REDIRECT, host);
	if (flow)
		flow->redirect_flags = BPF_F_INGRESS;
	return bpf_redirect(host, BPF_F_INGRESS);
}

#define AF 4
#include "overlay.inc.h"
#undef AF
#define AF 6
#include "overlay.inc.h"
#undef AF

#include "family.h"

/* Sends an ICMP error back by the tunnel. Returns a verdict. */
GLOBAL int redirect_back(CTX *ctx, union scratch *scratch)
{
	struct tunnel_peer *peer;
	struct trace_ctx *trace;

	scratch = OWN_SCRATCH(scratch);
	if (!scratch)
		return -DROP_INVALID;
	/* First member of both address families. */
	trace = &scratch->v4.trace;
	if (trace->ipv6) {
		find_peer6(ctx, &scratch->v6, scratch->v6.packet.saddr);
		peer = &scratch->v6.peer;
	} else {
		find_peer4(ctx, &scratch->v4, scratch->v4.packet.saddr);
		peer = &scratch->v4.peer;
	}
	if (!is_tunnelled(peer))
		return FAIL(trace, DROP_UNROUTABLE);
	return encapsulate(ctx, trace, peer, IDENTITY_HOST);
}

#endif /* PACKET_OVERLAY_H */
