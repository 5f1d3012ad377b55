/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Probes of a health checker on this node: what its socket sends to a service goes to the backend
 * that it probes, inside a packet, as with direct server return by IP in IP.
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
