/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Lookup of endpoints by address. */

static __always_inline const struct lxc_value *AF_FN(lxc_lookup)(AF_ADDRESS_IN address)
{
	struct lxc_key key = {.family = AF_FN(IPCACHE_IPV)};

	AF_TO_WORDS(key.address, address);
	return bpf_map_lookup_elem(&cilium_lxc, &key);
}
