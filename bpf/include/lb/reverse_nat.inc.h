/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Reverse NAT map of one address family. */

struct AF_JOIN(lb, _reverse_nat) {
	AF_ADDRESS(address);
	__be16 port;
} __attribute__((packed));
_Static_assert(sizeof(lb_reverse_nat_t) == AF_SIZE + 2, "reverse_nat layout");

MAP(AF_JOIN(cilium_lb, _reverse_nat), BPF_MAP_TYPE_HASH, __be16, lb_reverse_nat_t);
