/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* NAT maps of one address family. */

/* As in the packet; the id of an echo request is its source port, that of a reply its destination
 * port.
 */
struct AF_FN(nat_key) {
	AF_ADDRESS(daddr);
	AF_ADDRESS(saddr);
	__be16 dport;
	__be16 sport;
	__u8 proto;
	__u8 flags;
} __attribute__((packed));
_Static_assert(sizeof(nat_key_t) == 2 * AF_SIZE + 6, "nat_key layout");

struct AF_FN(nat_entry) {
	__u64 created;	/* monotonic seconds */
	__u64 needs_ct; /* flow of a process on this node, without a conntrack entry of its own */
	__u64 reserved[2];
	/* Forward: the new source. Reverse: the destination before. */
	AF_ADDRESS(address);
	__be16 port;
	__u8 pad[AF == 4 ? 2 : 6];
};
_Static_assert(sizeof(nat_entry_t) == (AF == 4 ? 40 : 56), "nat_entry layout");

MAP(AF_JOIN(cilium_snat_v, _external), BPF_MAP_TYPE_LRU_HASH, nat_key_t, nat_entry_t);

/* Index: ports that were taken before one was found, NAT_ATTEMPTS if none was. */
MAP(AF_JOIN(cilium_snat_v, _alloc_retries), BPF_MAP_TYPE_PERCPU_ARRAY, __u32, __u32);

/* Key of replies to this source. */
static __always_inline void AF_FN(nat_reverse_key)(const nat_key_t *forward, AF_ADDRESS_IN address,
						   __be16 port, nat_key_t *key)
{
	AF_COPY(key->daddr, address);
	AF_COPY(key->saddr, forward->daddr);
	key->dport = port;
	key->sport = forward->dport;
	key->proto = forward->proto;
	key->flags = NAT_REVERSE;
}
