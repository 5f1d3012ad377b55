/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* IPIP termination: encapsulated packets of clients to backends of this node, as sent by DSR with
 * IPIP. The outer destination is the selected backend.
 */
#ifndef PACKET_IPIP_H
#define PACKET_IPIP_H

#include "forward.h"

/* Maximum number of slots that are searched for a backend. */
#define DECAP_SLOTS 1024

#define TUNNEL_PROTO AF_PASTE(TUNNEL_PROTO, AF)

#define AF 4
#include "ipip.inc.h"
#undef AF
#define AF 6
#include "ipip.inc.h"
#undef AF

#endif /* PACKET_IPIP_H */
