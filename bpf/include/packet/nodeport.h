/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Services for clients outside, as tc and XDP programs serve them. */
#ifndef PACKET_NODEPORT_H
#define PACKET_NODEPORT_H

#include "../endpoint/endpoint.h"
#include "../nat/translate.h"
#include "../node/ipcache.h"
#include "../node/neighbour.h"
#include "service.h"

/* In front of a packet that an XDP program left to the tc program: it was translated, or there is
 * no service for it.
 */
#define METADATA_NO_SERVICE (1 << 0)

/* Flags of the entries of flows that came by a service. */
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
