/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Source ranges of one address family. */

struct AF_JOIN(lb, _source_range_key) {
	__u32 prefixlen; /* counts the 32 bits before the address */
	__be16 rev_nat_id;
	__u16 pad;
	AF_ADDRESS(address);
};
_Static_assert(sizeof(lb_source_range_key_t) == AF_SIZE + 8, "source_range_key layout");

MAP(AF_JOIN(cilium_lb, _source_range), BPF_MAP_TYPE_LPM_TRIE, lb_source_range_key_t, __u8);
