/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Packets of clients inside others for backends of this node, as other nodes send them with direct
 * server return by IP in IP. What is outside says which backend the client's node has chosen.
 */
#ifndef PACKET_IPIP_H
#define PACKET_IPIP_H

#include "forward.h"

/* Slots of a service that a backend is looked for in. */
#define UNPACK_SLOTS 1024

#define TUNNEL_PROTO AF_PASTE(TUNNEL_PROTO, AF)

#define AF 4
#include "ipip.inc.h"
#undef AF
#define AF 6
#include "ipip.inc.h"
#undef AF

#endif /* PACKET_IPIP_H */
