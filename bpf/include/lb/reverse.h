/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Ways back from a backend to its service, and sockets left alone.
 * Rust twin: bpf/maps/src/lb/reverse.rs
 */
#ifndef LB_REVERSE_H
#define LB_REVERSE_H

#include <linux/types.h>

struct lb4_reverse_nat {
	__be32 address;
	__be16 port;
} __attribute__((packed));
_Static_assert(sizeof(struct lb4_reverse_nat) == 6, "lb4_reverse_nat layout");

struct lb6_reverse_nat {
	__be32 address[4];
	__be16 port;
} __attribute__((packed));
_Static_assert(sizeof(struct lb6_reverse_nat) == 18, "lb6_reverse_nat layout");

/* A socket and the backend it talks to ... */
struct lb4_reverse_sk_key {
	__u64 cookie;
	__be32 address;
	__be16 port;
	__u16 pad;
};
_Static_assert(sizeof(struct lb4_reverse_sk_key) == 16, "lb4_reverse_sk_key layout");
_Static_assert(__builtin_offsetof(struct lb4_reverse_sk_key, port) == 12,
	       "lb4_reverse_sk_key.port");

struct lb6_reverse_sk_key {
	__u64 cookie;
	__be32 address[4];
	__be16 port;
	__u16 pad[3];
};
_Static_assert(sizeof(struct lb6_reverse_sk_key) == 32, "lb6_reverse_sk_key layout");
_Static_assert(__builtin_offsetof(struct lb6_reverse_sk_key, port) == 24,
	       "lb6_reverse_sk_key.port");

/* ... and what the application asked for. */
struct lb4_reverse_sk {
	__be32 address;
	__be16 port;
	__be16 rev_nat_index;
};
_Static_assert(sizeof(struct lb4_reverse_sk) == 8, "lb4_reverse_sk layout");

struct lb6_reverse_sk {
	__be32 address[4];
	__be16 port;
	__be16 rev_nat_index;
};
_Static_assert(sizeof(struct lb6_reverse_sk) == 20, "lb6_reverse_sk layout");

/* Sockets of this network namespace reach this service untranslated. */
struct lb4_skip_key {
	__u64 netns_cookie;
	__be32 address;
	__be16 port;
	__u16 pad;
};
_Static_assert(sizeof(struct lb4_skip_key) == 16, "lb4_skip_key layout");
_Static_assert(__builtin_offsetof(struct lb4_skip_key, port) == 12, "lb4_skip_key.port");

struct lb6_skip_key {
	__u64 netns_cookie;
	__be32 address[4];
	__u32 pad;
	__be16 port;
	__u16 pad2;
};
_Static_assert(sizeof(struct lb6_skip_key) == 32, "lb6_skip_key layout");
_Static_assert(__builtin_offsetof(struct lb6_skip_key, port) == 28, "lb6_skip_key.port");

#endif /* LB_REVERSE_H */
