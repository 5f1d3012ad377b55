/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Backend maps: backend id to address. Rust twin: bpf/maps/src/lb/backend.rs */
#ifndef LB_BACKEND_H
#define LB_BACKEND_H

#include "../common/af.h"
#include "../common/map.h"

enum lb_backend_state {
	LB_BACKEND_ACTIVE = 0,
	LB_BACKEND_TERMINATING = 1,
	LB_BACKEND_QUARANTINED = 2,
	LB_BACKEND_MAINTENANCE = 3,
};

#define AF 4
#include "backend.inc.h"
#undef AF
#define AF 6
#include "backend.inc.h"
#undef AF

#endif /* LB_BACKEND_H */
