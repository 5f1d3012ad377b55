/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Session affinity of one address family. */

struct AF_JOIN(lb, _affinity_key) {
	/* Address, rest zero; or cookie of the network namespace in the first word, rest zero. */
#if AF == 4
	__u64 client;
#else
	__u64 client[2];
#endif
	__be16 rev_nat_id;
	__u8 flags;
	__u8 pad;
	__u8 pad2[4];
};
_Static_assert(sizeof(lb_affinity_key_t) == (AF == 4 ? 16 : 24), "affinity_key layout");
_Static_assert(__builtin_offsetof(lb_affinity_key_t, flags) == (AF == 4 ? 10 : 18),
	       "affinity_key.flags");

MAP(AF_JOIN(cilium_lb, _affinity), BPF_MAP_TYPE_LRU_HASH, lb_affinity_key_t, struct lb_affinity);
