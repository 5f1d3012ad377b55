/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Health checker probes of this node: packets of its socket to a service are encapsulated to the
 * probed backend, as in DSR with IPIP.
 */
#ifndef PACKET_PROBE_H
#define PACKET_PROBE_H

#include "../lb/health.h"
#include "host.h"

#define AF 4
#include "probe.inc.h"
#undef AF
#define AF 6
#include "probe.inc.h"
#undef AF

#endif /* PACKET_PROBE_H */
