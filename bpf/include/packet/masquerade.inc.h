/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Masquerade of one address family. */

/* The pod's packet is a reply to a flow from outside. */
static __always_inline int AF_FN(is_reply)(scratch_t *scratch)
{
	const struct ct_entry *entry;

	AF_FN(ct_reverse)(&scratch->packet, &scratch->flow, CT_EGRESS);
	entry = AF_FN(ct_find)(&scratch->flow);
	return entry && !ct_is_expired(entry, scratch->trace.now);
}

/* The destination is in the native routing CIDR. */
static __always_inline int AF_FN(in_native_network)(AF_ADDRESS_IN address)
{
#if AF == 4
	__u8 bits = options.packet.native4_bits;

	return bits && !((address ^ options.packet.native4) & bpf_htonl(~0U << ((32 - bits) & 31)));
#else
	__u32 bits = options.packet.native6_bits, mask;
	int n;

	if (!bits)
		return 0;
	for (n = 0; n < 4; n++) {
		mask = bits >= 32U * (n + 1) ? ~0U
		       : bits > 32U * n	     ? ~0U << (32 - (bits - 32 * n))
					     : 0;
		if ((address[n] ^ options.packet.native6[n]) & bpf_htonl(mask))
			return 0;
	}
	return 1;
#endif
}

/* Returns 1 if the packet is masqueraded, with its new source. */
static __always_inline int AF_FN(masquerade_target)(CTX *ctx, scratch_t *scratch)
{
	const packet_t *packet = &scratch->packet;
	const struct device *device = &scratch->device;
	nat_target_t *target = &scratch->target;
	const struct lxc_value *sender = AF_FN(lxc_lookup)(packet->saddr);
	const struct ipcache_value *to;

	if ((ctx->mark & MARK_MASK) == MARK_HOST || (sender && (sender->flags & LXC_HOST)) ||
	    AF_SAME(packet->saddr, device->AF_FN(masquerade))) {
		/* Reserves the port, so that SNAT does not allocate it. */
		if (packet->proto != ICMP_PROTO && !nat_port_usable(packet->sport))
			return 0;
		AF_COPY(target->address, packet->saddr);
		target->needs_ct = 1;
		return 1;
	}
	if (!sender || (sender->flags & (LXC_AT_HOST_NS | AF_FN(LXC_SKIP_MASQUERADE))) ||
	    AF_FN(in_native_network)(packet->daddr) || AF_FN(is_reply)(scratch))
		return 0;
	if (options.packet.ip_masq_agent && AF_FN(is_non_masquerade)(packet->daddr))
		return 0;
	to = AF_FN(ipcache_lookup)(packet->daddr);
	/* Without the tunnel nodes know the way back to pods. */
	if (to && identity_is_node(to->identity) && !options.packet.masquerade_nodes &&
	    (!options.packet.tunnel || (to->flags & IPCACHE_SKIP_TUNNEL)))
		return 0;
	AF_COPY(target->address, device->AF_FN(masquerade));
	target->needs_ct = 0;
	return 1;
}
