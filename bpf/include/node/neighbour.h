/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* MAC addresses of clients of services. Rust twin: bpf/maps/src/node/neighbour.rs */
#ifndef NODE_NEIGHBOUR_H
#define NODE_NEIGHBOUR_H

#include "../common/af.h"
#include "../common/map.h"

struct neighbour_key4 {
	__be32 address;
};

struct neighbour_key6 {
	__be32 address[4];
};

struct neighbour {
	__u8 mac[8]; /* 6 bytes */
};
_Static_assert(sizeof(struct neighbour) == 8, "neighbour layout");

MAP(cilium_nodeport_neigh4, BPF_MAP_TYPE_LRU_HASH, struct neighbour_key4, struct neighbour);
MAP(cilium_nodeport_neigh6, BPF_MAP_TYPE_LRU_HASH, struct neighbour_key6, struct neighbour);

#endif /* NODE_NEIGHBOUR_H */
