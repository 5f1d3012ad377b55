/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Reverse NAT maps: service id to the address of its frontend. Rust twin:
 * bpf/maps/src/lb/reverse.rs */
#ifndef LB_REVERSE_NAT_H
#define LB_REVERSE_NAT_H

#include "../common/af.h"
#include "../common/map.h"

#define AF 4
#include "reverse_nat.inc.h"
#undef AF
#define AF 6
#include "reverse_nat.inc.h"
#undef AF

#endif /* LB_REVERSE_NAT_H */
