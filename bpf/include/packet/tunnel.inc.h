/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Tunnel peers of one address family. */

/* Identity of an address, for policies and events. */
static __always_inline __u32 AF_FN(identity_of)(AF_ADDRESS_IN address)
{
	const struct ipcache_value *value;

#if AF == 6
	if (options.packet.nat46x64 && is_embedded(address))
		return identity_of4(address[3]);
#endif
	value = AF_FN(ipcache_lookup)(address);
	return value ? value->identity : world_identity(options.packet.dual_stack, AF == 6);
}

/* Identity of a destination; sets its tunnel peer. */
static __always_inline __u32 AF_FN(find_peer)(CTX *ctx, scratch_t *scratch, AF_ADDRESS_IN address)
{
	const struct ipcache_value *value = AF_FN(ipcache_lookup)(address);

	if (value)
		DEBUG(ctx, &scratch->trace, AF_FN(DEBUG_IDENTITY), AF_LAST(address),
		      value->identity);
	else
		DEBUG(ctx, &scratch->trace, AF_FN(DEBUG_NO_IDENTITY), AF_LAST(address), 0);

	if (options.packet.tunnel)
		set_peer(&scratch->peer, value);
	return value ? value->identity : world_identity(options.packet.dual_stack, AF == 6);
}
