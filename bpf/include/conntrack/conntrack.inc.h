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
_Static_assert(sizeof(ct_key_t) == 2 * AF_SIZE + 6, "ct_key layout");

/* Original source port of a client whose port was translated; else 0. Entries with an IPv6 address
 * have no room for it, except those of DSR, which need no service id.
 */
static __always_inline __be16 AF_FN(ct_client_port)(const struct ct_entry *entry)
{
	if (entry->flags & CT_DSR)
		return entry->rev_nat_index;
	return AF == 6 && entry->nat_port ? 0 : *(const __be16 *)entry->nat_address;
}

static __always_inline void AF_FN(ct_set_client_port)(struct ct_entry *entry, __be16 port)
{
	if (entry->flags & CT_DSR)
		entry->rev_nat_index = port;
	else if (AF == 4 || !entry->nat_port)
		*(__be16 *)entry->nat_address = port;
}

/* TCP */
MAP(AF_JOIN(cilium_ct, _global), BPF_MAP_TYPE_LRU_HASH, ct_key_t, struct ct_entry);
/* everything else */
MAP(AF_JOIN(cilium_ct_any, _global), BPF_MAP_TYPE_LRU_HASH, ct_key_t, struct ct_entry);
