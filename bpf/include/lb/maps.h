/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The load-balancer maps. Sizes and flags are set by user space, which creates and pins them
 * (bpf/maps/src/lb/specs.rs); the numbers here are its defaults.
 */
#ifndef LB_MAPS_H
#define LB_MAPS_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "affinity.h"
#include "backend.h"
#include "map.h"
#include "reverse_maps.h"
#include "service.h"
#include "source_range.h"

#define LB_AGENT_ONLY (BPF_F_NO_PREALLOC | BPF_F_RDONLY_PROG)

LB_MAP(cilium_lb4_services_v2, BPF_MAP_TYPE_HASH, struct lb4_service_key, struct lb_service, 65536,
       LB_AGENT_ONLY);
LB_MAP(cilium_lb6_services_v2, BPF_MAP_TYPE_HASH, struct lb6_service_key, struct lb_service, 65536,
       LB_AGENT_ONLY);
LB_MAP(cilium_lb4_backends_v3, BPF_MAP_TYPE_HASH, __u32, struct lb4_backend, 65536,
       BPF_F_NO_PREALLOC);
LB_MAP(cilium_lb6_backends_v3, BPF_MAP_TYPE_HASH, __u32, struct lb6_backend, 65536,
       BPF_F_NO_PREALLOC);
LB_MAP(cilium_lb4_reverse_nat, BPF_MAP_TYPE_HASH, __be16, struct lb4_reverse_nat, 65536,
       BPF_F_NO_PREALLOC);
LB_MAP(cilium_lb6_reverse_nat, BPF_MAP_TYPE_HASH, __be16, struct lb6_reverse_nat, 65536,
       BPF_F_NO_PREALLOC);
LB_MAP(cilium_lb4_affinity, BPF_MAP_TYPE_LRU_HASH, struct lb4_affinity_key, struct lb_affinity,
       65536, 0);
LB_MAP(cilium_lb6_affinity, BPF_MAP_TYPE_LRU_HASH, struct lb6_affinity_key, struct lb_affinity,
       65536, 0);
LB_MAP(cilium_lb_affinity_match, BPF_MAP_TYPE_HASH, struct lb_affinity_match_key, __u8, 65536,
       LB_AGENT_ONLY);
LB_MAP(cilium_lb4_source_range, BPF_MAP_TYPE_LPM_TRIE, struct lb4_source_range_key, __u8, 65536,
       LB_AGENT_ONLY);
LB_MAP(cilium_lb6_source_range, BPF_MAP_TYPE_LPM_TRIE, struct lb6_source_range_key, __u8, 65536,
       LB_AGENT_ONLY);
LB_MAP(cilium_skip_lb4, BPF_MAP_TYPE_HASH, struct lb4_skip_key, __u8, 100, LB_AGENT_ONLY);
LB_MAP(cilium_skip_lb6, BPF_MAP_TYPE_HASH, struct lb6_skip_key, __u8, 100, LB_AGENT_ONLY);

/* Inner maps: one entry, the whole table of backend ids. */
struct lb_maglev_inner {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(__u32) * 16381);
	__uint(max_entries, 1);
};

#define LB_MAGLEV(name_)                                                                           \
	struct {                                                                                   \
		__uint(type, BPF_MAP_TYPE_HASH_OF_MAPS);                                           \
		__type(key, __be16);                                                               \
		__uint(max_entries, 65536);                                                        \
		__uint(map_flags, LB_AGENT_ONLY);                                                  \
		__array(values, struct lb_maglev_inner);                                           \
	} name_ SEC(".maps")

LB_MAGLEV(cilium_lb4_maglev);
LB_MAGLEV(cilium_lb6_maglev);

#endif /* LB_MAPS_H */
