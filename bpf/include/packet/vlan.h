/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Packets with a VLAN tag at an interface of the node. */
#ifndef PACKET_VLAN_H
#define PACKET_VLAN_H

#include <linux/pkt_cls.h>

#include "../endpoint/endpoint.h"
#include "../event/packet_event.h"
#include "../node/options.h"

/* The tag bypasses the programs: by setting, or because the VLAN interface has its own. */
static __always_inline int vlan_allowed(CTX *ctx)
{
	struct vlan_key key = {.ifindex = ctx->ifindex, .id = ctx->vlan_tci & 0xfff};
	int n;

	if (options.packet.vlan_all)
		return 1;
	for (n = 0; n < 5; n++) {
		if (options.packet.vlan_ids[n] == key.id)
			return 1;
	}
	return bpf_map_lookup_elem(&skep_vlans, &key) != NULL;
}

static __always_inline int vlan_tagged(CTX *ctx)
{
	return ctx->vlan_present && (ctx->vlan_tci & 0xfff);
}

/* A packet with a VLAN tag. Returns a verdict. */
static __noinline int filter_vlan(CTX *ctx, struct trace_ctx *trace)
{
	return vlan_allowed(ctx) ? TC_ACT_OK : FAIL(trace, DROP_VLAN);
}

#endif /* PACKET_VLAN_H */
