/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Packets of one address family at the tunnel device. */

/* A packet received by the tunnel. Returns a verdict. */
GLOBAL int AF_FN(from_overlay)(CTX *ctx, scratch_t *scratch)
{
	const struct ipcache_value *sender;
	packet_t *packet;
	const struct lxc_value *local;
	struct trace_ctx *trace;
	int verdict = 0;
	__u8 broken;

	scratch = OWN_SCRATCH(scratch);
	if (!scratch)
		return -DROP_INVALID;
	trace = &scratch->trace;
	packet = &scratch->packet;
	broken = AF_FN(read_packet)(ctx, scratch);
	if (broken)
		return FAIL(trace, broken);
	/* Nodes of the API server have their own identity. */
	if (trace->source_identity == IDENTITY_REMOTE_NODE) {
		sender = AF_FN(ipcache_lookup)(packet->saddr);
		if (sender && sender->identity != IDENTITY_HOST)
			trace->source_identity = sender->identity;
	}
	if (has_ports(packet->proto) && packet->error)
		return FAIL(trace, packet->error);
	local = AF_FN(lxc_lookup)(packet->daddr);
	scratch->reverse_translated = 0;
	if (!local || (local->flags & LXC_HOST)) {
		verdict = AF_FN(from_network_node)(ctx, scratch, local != NULL);
		if (verdict && verdict != TO_STACK)
			return verdict;
		/* An answer may be for a pod. */
		if (scratch->reverse_translated)
			local = AF_FN(lxc_lookup)(packet->daddr);
	}
	if (!verdict && local && !(local->flags & (LXC_HOST | LXC_AT_HOST_NS)))
		return AF_FN(deliver)(ctx, scratch, local, FROM_NETWORK);
	return redirect_to_host(ctx, trace);
}

/* A packet to be sent by the tunnel. Returns a verdict. */
GLOBAL int AF_FN(to_overlay)(CTX *ctx, scratch_t *scratch)
{
	packet_t *packet;
	struct trace_ctx *trace;
	AF_ADDRESS(router);
	int error;

	scratch = OWN_SCRATCH(scratch);
	if (!scratch)
		return -DROP_INVALID;
	trace = &scratch->trace;
	packet = &scratch->packet;
	/* Invalid packets of the node itself are not dropped here. */
	if (AF_FN(read_packet)(ctx, scratch) || packet->ct_error)
		return TC_ACT_OK;
	error = AF_FN(reverse_service)(ctx, scratch);
	if (error)
		return error < 0 ? error : TC_ACT_OK;
	AF_COPY(router, packet_options()->AF_FN(router));
	if (!AF_SAME(packet->saddr, router))
		return TC_ACT_OK;
	/* The node's own packets share the SNAT address: they reserve their ports. */
	if (packet->proto == ICMP_PROTO) {
		if (packet->icmp_type != (AF == 4 ? ICMP4_ECHO : ICMP6_ECHO))
			return TC_ACT_OK;
	} else if (!nat_port_usable(packet->sport)) {
		return TC_ACT_OK;
	}
	AF_COPY(scratch->target.address, router);
	scratch->target.needs_ct = 1;
	error = AF_FN(nat_egress)(ctx, scratch);
	return error ? FAIL(trace, error) : TC_ACT_OK;
}
