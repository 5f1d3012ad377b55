/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Backend maps: backend id to address. Rust twin: bpf/maps/src/lb/backend.rs */
#ifndef LB_BACKEND_H
#define LB_BACKEND_H

#include <linux/types.h>

struct lb4_backend {
	__be32 address;
	__be16 port;
	__u8 proto;
	__u8 flags;	  /* state: 0 active, 1 terminating, 2 quarantined, 3 maintenance */
	__u16 cluster_id; /* 0 = this cluster */
	__u8 zone;
	__u8 pad;
};
_Static_assert(sizeof(struct lb4_backend) == 12, "lb4_backend layout");
_Static_assert(__builtin_offsetof(struct lb4_backend, flags) == 7, "lb4_backend.flags");
_Static_assert(__builtin_offsetof(struct lb4_backend, zone) == 10, "lb4_backend.zone");

struct lb6_backend {
	__be32 address[4];
	__be16 port;
	__u8 proto;
	__u8 flags;
	__u16 cluster_id;
	__u8 zone;
	__u8 pad;
};
_Static_assert(sizeof(struct lb6_backend) == 24, "lb6_backend layout");
_Static_assert(__builtin_offsetof(struct lb6_backend, flags) == 19, "lb6_backend.flags");
_Static_assert(__builtin_offsetof(struct lb6_backend, zone) == 22, "lb6_backend.zone");

#endif /* LB_BACKEND_H */
