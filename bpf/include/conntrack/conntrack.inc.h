/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Connection tracking maps of one address family. */

/* Of the first packet of a flow: addresses exchanged, ports as they are; of services: addresses as
 * they are, ports exchanged.
 */
struct AF_FN(ct_key) {
	AF_ADDRESS(daddr);
	AF_ADDRESS(saddr);
	__be16 dport;
	__be16 sport;
	__u8 proto;
	__u8 flags;
} __attribute__((packed));
_Static_assert(sizeof(struct AF_FN(ct_key)) == 2 * AF_SIZE + 6, "ct_key layout");

/* TCP */
MAP(AF_JOIN(cilium_ct, _global), BPF_MAP_TYPE_LRU_HASH, struct AF_FN(ct_key), struct ct_entry);
/* everything else */
MAP(AF_JOIN(cilium_ct_any, _global), BPF_MAP_TYPE_LRU_HASH, struct AF_FN(ct_key), struct ct_entry);
