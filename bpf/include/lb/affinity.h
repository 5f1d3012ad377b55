/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Session affinity. Rust twin: bpf/maps/src/lb/affinity.rs */
#ifndef LB_AFFINITY_H
#define LB_AFFINITY_H

#include <linux/types.h>

#define LB_AFFINITY_NETNS_COOKIE 1 /* in flags: the client is a cookie, not an address */

struct lb4_affinity_key {
	__u64 client; /* IPv4 address, rest zero; or cookie of the network namespace */
	__be16 rev_nat_id;
	__u8 flags;
	__u8 pad;
	__u8 pad2[4];
};
_Static_assert(sizeof(struct lb4_affinity_key) == 16, "lb4_affinity_key layout");
_Static_assert(__builtin_offsetof(struct lb4_affinity_key, flags) == 10, "lb4_affinity_key.flags");

struct lb6_affinity_key {
	__u64 client[2]; /* IPv6 address; or cookie of the network namespace, then zero */
	__be16 rev_nat_id;
	__u8 flags;
	__u8 pad;
	__u8 pad2[4];
};
_Static_assert(sizeof(struct lb6_affinity_key) == 24, "lb6_affinity_key layout");
_Static_assert(__builtin_offsetof(struct lb6_affinity_key, flags) == 18, "lb6_affinity_key.flags");

struct lb_affinity {
	__u64 last_used;
	__u32 backend_id;
	__u32 pad;
};
_Static_assert(sizeof(struct lb_affinity) == 16, "lb_affinity layout");

/* Exists while the backend belongs to the affinity service. */
struct lb_affinity_match_key {
	__u32 backend_id;
	__be16 rev_nat_id;
	__u16 pad;
};
_Static_assert(sizeof(struct lb_affinity_match_key) == 8, "lb_affinity_match_key layout");

#endif /* LB_AFFINITY_H */
