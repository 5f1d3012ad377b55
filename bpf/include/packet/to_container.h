/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Packets that leave by the interface of a pod, routed by the kernel or sent by cil_from_host.
 * Packets delivered by other programs bypass it.
 */
#ifndef PACKET_TO_CONTAINER_H
#define PACKET_TO_CONTAINER_H

#include "host.h"

/* Origin of a packet with this mark. Without an identity, only cil_from_netdev with legacy routing
 * may have seen it.
 */
static __always_inline enum delivery delivery_of_mark(__u32 mark)
{
	if ((mark & MARK_MASK) == MARK_INGRESS_PROXY)
		return FROM_INGRESS_PROXY;
	if ((mark & MARK_MASK) == MARK_EGRESS_PROXY)
		return FROM_EGRESS_PROXY;
	return sender_of_mark(mark) || options.packet.legacy_routing ? FROM_HOST : FROM_NETWORK;
}

#define AF 4
#include "to_container.inc.h"
#undef AF
#define AF 6
#include "to_container.inc.h"
#undef AF

#endif /* PACKET_TO_CONTAINER_H */
