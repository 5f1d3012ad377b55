/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Packets with a VLAN tag at an interface of the node. */
#ifndef PACKET_VLAN_H
#define PACKET_VLAN_H

#include <linux/pkt_cls.h>

#include "../endpoint/endpoint.h"
#include "../event/packet_event.h"
#include "../node/options.h"

/* Packets with this tag pass, not to be looked at here: the setting says so, or the interface of
 * the VLAN has programs, which see them without the tag.
 */
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

/* What becomes of a packet with a VLAN tag. Returns a verdict, or less: a drop reason. */
static __noinline int filter_vlan(CTX *ctx, struct path *path)
{
	return vlan_allowed(ctx) ? TC_ACT_OK : FAIL(path, DROP_VLAN);
}

#endif /* PACKET_VLAN_H */
