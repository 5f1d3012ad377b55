/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* nonMasqueradeCIDRs of one address family. */

struct AF_FN(ip_masq_key) {
	__u32 prefixlen;
	AF_ADDRESS(address);
};
_Static_assert(sizeof(ip_masq_key_t) == AF_SIZE + 4, "ip_masq_key layout");

MAP(AF_FN(cilium_ipmasq_v), BPF_MAP_TYPE_LPM_TRIE, ip_masq_key_t, __u8);

#ifdef __bpf__
static __always_inline int AF_FN(is_non_masquerade)(AF_ADDRESS_IN address)
{
	ip_masq_key_t key = {.prefixlen = 8 * AF_SIZE};

	AF_COPY(key.address, address);
	return bpf_map_lookup_elem(&AF_FN(cilium_ipmasq_v), &key) != NULL;
}
#endif
