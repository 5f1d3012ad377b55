/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Backend maps: backend id to address. Rust twin: bpf/maps/src/lb/backend.rs */
#ifndef LB_BACKEND_H
#define LB_BACKEND_H

#include <linux/in.h>

#include "../common/af.h"
#include "../common/map.h"

enum lb_backend_state {
	LB_BACKEND_ACTIVE = 0,
	LB_BACKEND_TERMINATING = 1,
	LB_BACKEND_QUARANTINED = 2,
	LB_BACKEND_MAINTENANCE = 3,
};

/* New flows may be sent to a backend in this state. */
static __always_inline int lb_takes_flows(__u8 state)
{
	return state == LB_BACKEND_ACTIVE;
}

/* A backend in this state keeps its connections. Datagrams may change their backend: they go to an
 * active one.
 */
static __always_inline int lb_keeps_flows(__u8 state, __u8 proto)
{
	return state == LB_BACKEND_ACTIVE || state == LB_BACKEND_TERMINATING ||
	       proto != IPPROTO_UDP;
}

#define AF 4
#include "backend.inc.h"
#undef AF
#define AF 6
#include "backend.inc.h"
#undef AF

#endif /* LB_BACKEND_H */
