/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Entries of one address family. */

struct AF_FN(flow_key) {
	AF_ADDRESS(saddr);
	AF_ADDRESS(daddr);
	__be16 sport;
	__be16 dport;
	__u32 ifindex;
	__u8 proto;
	__u8 hook;
	__u8 pad[2]; /* zero */
};
_Static_assert(sizeof(flow_key_t) == 12 + 2 * AF_SIZE, "flow_key layout");

struct AF_FN(flow) {
	struct flow flow;
	AF_ADDRESS(saddr);
	AF_ADDRESS(daddr);
	__be16 sport;
	__be16 dport;
};
_Static_assert(sizeof(flow_t) == 128 + 2 * AF_SIZE, "flow layout");

MAP(AF_FN(skep_flows), BPF_MAP_TYPE_LRU_HASH, flow_key_t, flow_t);
