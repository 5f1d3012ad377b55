/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Services for clients outside, at tc and XDP. */
#ifndef PACKET_NODEPORT_H
#define PACKET_NODEPORT_H

#include "../endpoint/endpoint.h"
#include "../nat/translate.h"
#include "../node/ipcache.h"
#include "../node/neighbour.h"
#include "service.h"

/* XDP metadata: the packet was translated, or there is no service. */
#define METADATA_NO_SERVICE (1 << 0)

/* Flags of conntrack entries of flows to services. */
static __always_inline __u8 by_service(void)
{
	return options.packet.dsr ? CT_NODE_PORT | CT_DSR : CT_NODE_PORT;
}

#define AF 4
#include "nodeport.inc.h"
#undef AF
#define AF 6
#include "nodeport.inc.h"
#undef AF

#endif /* PACKET_NODEPORT_H */
