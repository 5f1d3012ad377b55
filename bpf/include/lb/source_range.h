/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Source ranges of services. Rust twin: bpf/maps/src/lb/source_range.rs */
#ifndef LB_SOURCE_RANGE_H
#define LB_SOURCE_RANGE_H

#include <linux/types.h>

struct lb4_source_range_key {
	__u32 prefixlen; /* counts the 32 bits before the address */
	__be16 rev_nat_id;
	__u16 pad;
	__be32 address;
};
_Static_assert(sizeof(struct lb4_source_range_key) == 12, "lb4_source_range_key layout");

struct lb6_source_range_key {
	__u32 prefixlen;
	__be16 rev_nat_id;
	__u16 pad;
	__be32 address[4];
};
_Static_assert(sizeof(struct lb6_source_range_key) == 24, "lb6_source_range_key layout");

#endif /* LB_SOURCE_RANGE_H */
