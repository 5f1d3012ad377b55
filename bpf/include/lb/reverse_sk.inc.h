/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Reverse socket map of one address family. */

/* A socket and the backend it is connected to ... */
struct AF_JOIN(lb, _reverse_sk_key) {
	__u64 cookie;
	AF_ADDRESS(address);
	__be16 port;
#if AF == 4
	__u16 pad;
#else
	__u16 pad[3];
#endif
};
_Static_assert(sizeof(lb_reverse_sk_key_t) == (AF == 4 ? 16 : 32), "reverse_sk_key layout");
_Static_assert(__builtin_offsetof(lb_reverse_sk_key_t, port) == AF_SIZE + 8, "reverse_sk_key.port");

/* ... and what the application asked for. */
struct AF_JOIN(lb, _reverse_sk) {
	AF_ADDRESS(address);
	__be16 port;
	__be16 rev_nat_index;
};
_Static_assert(sizeof(lb_reverse_sk_t) == AF_SIZE + 4, "reverse_sk layout");

MAP(AF_JOIN(cilium_lb, _reverse_sk), BPF_MAP_TYPE_LRU_HASH, lb_reverse_sk_key_t, lb_reverse_sk_t);
