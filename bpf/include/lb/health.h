/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Backends of health checker sockets: packets of such a socket to a service go to one backend. Rust
 * twin: bpf/maps/src/lb/health.rs
 */
#ifndef LB_HEALTH_H
#define LB_HEALTH_H

#include "backend.h"

/* Of sockets of a health checker on the node. */
#define MARK_PROBE 0xd00

#define AF 4
#include "health.inc.h"
#undef AF
#define AF 6
#include "health.inc.h"
#undef AF

#endif /* LB_HEALTH_H */
