/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Ids of other nodes by their addresses. Rust twin: bpf/maps/src/node/ids.rs */
#ifndef NODE_IDS_H
#define NODE_IDS_H

#include "../common/map.h"

struct node_id_key {
	__u16 pad1;
	__u8 pad2;
	__u8 family;	   /* 1 = IPv4, 2 = IPv6 */
	__be32 address[4]; /* IPv4 in the first word, rest zero */
};
_Static_assert(sizeof(struct node_id_key) == 20, "node_id_key layout");
_Static_assert(__builtin_offsetof(struct node_id_key, family) == 3, "node_id_key.family");

struct node_id_value {
	__u16 id;
	__u8 spi; /* index of the node's IPsec key, 0 = none */
	__u8 pad;
};
_Static_assert(sizeof(struct node_id_value) == 4, "node_id_value layout");

MAP(cilium_node_map_v2, BPF_MAP_TYPE_HASH, struct node_id_key, struct node_id_value);

#endif /* NODE_IDS_H */
