/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Ways of a packet at the interface of the tunnel. */
#ifndef PACKET_OVERLAY_H
#define PACKET_OVERLAY_H

#include "host.h"

/* Gives the packet to the node, as if `cilium_host` received it. */
static __always_inline int give_to_host(CTX *ctx, const struct path *path)
{
	__u32 host = options.packet.cilium_host;
	const struct device *device = bpf_map_lookup_elem(&skep_devices, &host);
	struct ethernet *ethernet = packet_bytes(ctx, 0, sizeof(*ethernet));

	if (options.packet.identity_mark)
		ctx->mark = mark_with_identity(ctx->mark & ~MARK_MASK, path->source_identity) |
			    MARK_IDENTITY;
	if (!device || !ethernet) {
		bpf_skb_change_type(ctx, PACKET_HOST);
		return TC_ACT_OK;
	}
	copy_mac(ethernet->source, device->mac);
	copy_mac(ethernet->destination, device->mac);
	return bpf_redirect(host, BPF_F_INGRESS);
}

#define AF 4
#include "overlay.inc.h"
#undef AF
#define AF 6
#include "overlay.inc.h"
#undef AF

#include "family.h"

/* Sends an ICMP error back by the tunnel. Returns a verdict, or less: a drop reason. */
GLOBAL int go_back(CTX *ctx, union work *work)
{
	struct tunnel_peer *peer;
	struct path *path;

	work = OWN_WORK(work);
	if (!work)
		return -DROP_INVALID;
	/* At the beginning for both address families. */
	path = &work->v4.path;
	if (path->ipv6) {
		find_peer6(ctx, &work->v6, work->v6.packet.saddr);
		peer = &work->v6.peer;
	} else {
		find_peer4(ctx, &work->v4, work->v4.packet.saddr);
		peer = &work->v4.peer;
	}
	if (!is_tunnelled(peer))
		return FAIL(path, DROP_UNROUTABLE);
	return encapsulate(ctx, path, peer, IDENTITY_HOST);
}

#endif /* PACKET_OVERLAY_H */
