/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Ways of a packet at interfaces of the node: services for clients outside, masquerade. */
#ifndef PACKET_HOST_H
#define PACKET_HOST_H

#include "../nat/translate.h"
#include "../node/neighbour.h"
#include "forward.h"

/* The identity that a mark carries; 0 if it says nothing. */
static __always_inline __u32 marked_identity(__u32 mark)
{
	switch (mark & MARK_MASK) {
	case MARK_HOST:
	case MARK_OVERLAY:
	case MARK_ENCRYPT:
		return IDENTITY_HOST;
	case MARK_EGRESS_PROXY:
	case MARK_IDENTITY:
	case MARK_EGRESS_GATEWAY:
		return identity_of_mark(mark);
	}
	return 0;
}

static __always_inline void mark_snat_done(struct __sk_buff *skb)
{
	skb->mark = (skb->mark & ~MARK_MASK) | MARK_SNAT_DONE;
}

/* Has a VLAN tag that is not for this interface; some go to the kernel. */
static __always_inline int vlan_allowed(struct __sk_buff *skb)
{
	__u16 id = skb->vlan_tci & 0xfff;
	int n;

	if (options.packet.vlan_all)
		return 1;
	for (n = 0; n < 5; n++) {
		if (options.packet.vlan_ids[n] == id)
			return 1;
	}
	return 0;
}

static __always_inline int vlan_tagged(struct __sk_buff *skb)
{
	return skb->vlan_present && (skb->vlan_tci & 0xfff);
}

#define AF 4
#include "host.inc.h"
#undef AF
#define AF 6
#include "host.inc.h"
#undef AF

#endif /* PACKET_HOST_H */
