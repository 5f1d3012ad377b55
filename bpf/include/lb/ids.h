/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* High-water marks of service and backend ids, for the agent alone: programs do not read them. Rust
 * twin: bpf/maps/src/lb/ids.rs
 */
#ifndef LB_IDS_H
#define LB_IDS_H

#include "../common/map.h"

struct lb_id_mark {
	__u32 next;	   /* tried next */
	__u32 has_wrapped; /* 1 if higher ids were allocated before */
};
_Static_assert(sizeof(struct lb_id_mark) == 8, "lb_id_mark layout");

MAP(skep_lb_ids, BPF_MAP_TYPE_ARRAY, __u32, struct lb_id_mark);

#endif /* LB_IDS_H */
