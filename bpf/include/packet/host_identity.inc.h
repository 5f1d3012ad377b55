/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Identities of senders on the node, of one address family. */

/* Source identity of encapsulated host traffic: without a mark, the host's if the packet has no
 * ingress interface and the node's address.
 */
static __always_inline __u32 AF_FN(host_identity)(CTX *ctx, scratch_t *scratch)
{
	__u32 identity = scratch->trace.source_identity;
	const struct lxc_value *sender;

	if (identity != world_identity(options.packet.dual_stack, AF == 6) || ctx->ingress_ifindex)
		return identity;
	sender = AF_FN(lxc_lookup)(scratch->packet.saddr);
	return sender && (sender->flags & LXC_HOST) ? IDENTITY_HOST : identity;
}

/* Refines a reserved source identity of the mark by the ipcache. The host identity is ignored:
 * masqueraded packets have its address as well.
 */
static __always_inline void AF_FN(resolve_sender)(scratch_t *scratch)
{
	const packet_t *packet = &scratch->packet;
	const struct ipcache_value *known;
	struct trace_ctx *trace = &scratch->trace;

	if (trace->source_identity < IDENTITY_FIRST_ALLOCATED) {
#if AF == 6
		if (options.packet.nat46x64 && is_embedded(packet->saddr))
			known = ipcache_lookup4(packet->saddr[3]);
		else
#endif
			known = AF_FN(ipcache_lookup)(packet->saddr);
		if (known && known->identity && known->identity != IDENTITY_HOST)
			trace->source_identity = known->identity;
	}
}
