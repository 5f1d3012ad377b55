/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The few kernel types that socket iterators read. Offsets are relocated at load (CO-RE); only
 * names and kinds must be right. For programs that include no other kernel header than linux/bpf.h.
 */
#ifndef SOCKET_KERNEL_H
#define SOCKET_KERNEL_H

#include <linux/types.h>

#include "../common/iter.h"

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct in6_addr {
	union {
		__be32 u6_addr32[4];
	} in6_u;
};

struct sock_common {
	__be32 skc_daddr;
	__be16 skc_dport;
	unsigned short skc_family;
	struct in6_addr skc_v6_daddr;
};

struct sock {
	struct sock_common __sk_common;
};

struct inet_sock {
	struct sock sk;
};

struct udp_sock {
	struct inet_sock inet;
};

struct bpf_iter__udp {
	struct bpf_iter_meta *meta;
	struct udp_sock *udp_sk;
} __attribute__((aligned(8)));

struct bpf_iter__tcp {
	struct bpf_iter_meta *meta;
	struct sock_common *sk_common;
} __attribute__((aligned(8)));

#pragma clang attribute pop

#endif /* SOCKET_KERNEL_H */
