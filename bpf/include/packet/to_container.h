/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The way of a packet that leaves by the interface of a pod: the kernel routed it there, or
 * cil_from_host sent it. What other programs deliver goes straight into the pod and is not seen
 * here.
 */
#ifndef PACKET_TO_CONTAINER_H
#define PACKET_TO_CONTAINER_H

#include "host.h"

/* Origin of a packet with this mark. Without identity no program of this node has handled it, but
 * with legacy routing cil_from_netdev may have.
 */
static __always_inline enum delivery delivery_of_mark(__u32 mark)
{
	if ((mark & MARK_MASK) == MARK_INGRESS_PROXY)
		return FROM_INGRESS_PROXY;
	return sender_of_mark(mark) || options.packet.legacy_routing ? FROM_HOST : FROM_NETWORK;
}

#define AF 4
#include "to_container.inc.h"
#undef AF
#define AF 6
#include "to_container.inc.h"
#undef AF

#endif /* PACKET_TO_CONTAINER_H */
