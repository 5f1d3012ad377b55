/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Lookup of one address family: the entry with the longest prefix of an address of this cluster. */

static __always_inline const struct ipcache_value *AF_FN(ipcache_lookup)(AF_ADDRESS_IN address)
{
	struct ipcache_key key = {
		.prefixlen = IPCACHE_STATIC_BITS + 8 * AF_SIZE,
		.family = AF_FN(IPCACHE_IPV),
	};

	AF_TO_WORDS(key.address, address);
	return bpf_map_lookup_elem(&cilium_ipcache_v2, &key);
}
