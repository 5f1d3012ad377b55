/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* NAT maps, and the histogram of port allocation retries. Rust twin: bpf/maps/src/nat.rs */
#ifndef NAT_NAT_H
#define NAT_NAT_H

#include "../common/af.h"
#include "../common/map.h"

/* flags of a key */
#define NAT_FORWARD 0
#define NAT_REVERSE 1

#define AF 4
#include "nat.inc.h"
#undef AF
#define AF 6
#include "nat.inc.h"
#undef AF

#define NAT_ATTEMPTS 32

#endif /* NAT_NAT_H */
