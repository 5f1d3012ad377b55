/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Session affinity: client of a service to its last backend. Rust twin: bpf/maps/src/lb/affinity.rs
 */
#ifndef LB_AFFINITY_H
#define LB_AFFINITY_H

#include "../common/af.h"
#include "../common/map.h"

#define LB_AFFINITY_NETNS_COOKIE 1 /* flag: the client is a netns cookie, not an address */

struct lb_affinity {
	__u64 last_used; /* seconds, or ticks / 256 */
	__u32 backend_id;
	__u32 pad;
};
_Static_assert(sizeof(struct lb_affinity) == 16, "lb_affinity layout");

#define AF 4
#include "affinity.inc.h"
#undef AF
#define AF 6
#include "affinity.inc.h"
#undef AF

/* Membership of a backend in a service with affinity. */
struct lb_affinity_match_key {
	__u32 backend_id;
	__be16 rev_nat_id;
	__u16 pad;
};
_Static_assert(sizeof(struct lb_affinity_match_key) == 8, "lb_affinity_match_key layout");

MAP(cilium_lb_affinity_match, BPF_MAP_TYPE_HASH, struct lb_affinity_match_key, __u8);

#endif /* LB_AFFINITY_H */
