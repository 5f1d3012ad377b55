/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Reverse socket maps: a socket and its backend to the service that the application asked for.
 * Rust twin: bpf/maps/src/lb/reverse.rs */
#ifndef LB_REVERSE_SK_H
#define LB_REVERSE_SK_H

#include "../common/af.h"
#include "../common/map.h"

#define AF 4
#include "reverse_sk.inc.h"
#undef AF
#define AF 6
#include "reverse_sk.inc.h"
#undef AF

#endif /* LB_REVERSE_SK_H */
