/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Ports of fragmented datagrams, which only the first fragment has. Of echo messages: the id as
 * source port, the type as destination port. Rust twin: bpf/maps/src/fragment.rs
 */
#ifndef PACKET_FRAGMENT_H
#define PACKET_FRAGMENT_H

#include "../common/map.h"

struct fragment_key4 {
	__be32 daddr;
	__be32 saddr;
	__be16 id;
	__u8 proto;
	__u8 pad;
};
_Static_assert(sizeof(struct fragment_key4) == 12, "fragment_key4 layout");

struct fragment_key6 {
	__be32 id;
	__u8 proto;
	__u8 pad[3];
	__be32 saddr[4];
	__be32 daddr[4];
};
_Static_assert(sizeof(struct fragment_key6) == 40, "fragment_key6 layout");

struct fragment_ports {
	__be16 sport;
	__be16 dport;
};
_Static_assert(sizeof(struct fragment_ports) == 4, "fragment_ports layout");

MAP(cilium_ipv4_frag_datagrams, BPF_MAP_TYPE_LRU_HASH, struct fragment_key4, struct fragment_ports);
MAP(cilium_ipv6_frag_datagrams, BPF_MAP_TYPE_LRU_HASH, struct fragment_key6, struct fragment_ports);

#endif /* PACKET_FRAGMENT_H */
