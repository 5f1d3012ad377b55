/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Requests of clients outside to services, of one address family, at tc. */

/* A request exceeds the MTU to the backend: sends the client an ICMP error about the original
 * packet. Returns a verdict.
 */
GLOBAL int AF_FN(request_frag_needed)(CTX *ctx, scratch_t *scratch)
{
	int error;

	scratch = OWN_SCRATCH(scratch);
	if (!scratch)
		return -DROP_INVALID;
	error = AF_FN(rewrite)(ctx, &scratch->packet, SOURCE, scratch->forward.saddr,
			       scratch->forward.sport);
	if (!error)
		error = AF_FN(untranslate)(ctx, scratch);
	return error ? FAIL(&scratch->trace, error)
		     : AF_FN(send_frag_needed)(ctx, &scratch->packet, &scratch->trace,
					       scratch->mtu);
}

/* Forwards a request to a backend on another node, with SNAT. */
static __always_inline int AF_FN(nodeport_remote)(CTX *ctx, scratch_t *scratch)
{
	struct trace_ctx *trace = &scratch->trace;
	int error, tunnelled = 0;

	AF_COPY(scratch->target.address, AF_OPTION(nodeport_source));
	if (options.packet.tunnel) {
		AF_FN(find_peer)(ctx, scratch, scratch->packet.daddr);
		tunnelled = is_tunnelled(&scratch->peer);
	}
	/* The reply comes by the tunnel as well. */
	if (tunnelled)
		AF_COPY(scratch->target.address, packet_options()->AF_FN(router));
	scratch->target.needs_ct = 0;
	trace->file = METRIC_FILE_NODEPORT;
	trace->direction = METRIC_EGRESS;
	if (scratch->packet.hop_limit <= 1)
		return AF_FN(request_time_exceeded)(ctx, scratch);
	error = AF_FN(nat_egress)(ctx, scratch);
	if (error)
		return FAIL(trace, error);
	mark_snat_done(ctx);
	if (!tunnelled) {
		error = AF_FN(route)(ctx, scratch, 1);
		return error == -DROP_TOO_LARGE ? AF_FN(request_frag_needed)(ctx, scratch) : error;
	}
	error = AF_FN(take_hop_or_reply)(ctx, &scratch->packet, &scratch->trace);
	if (error)
		return error;
	return encapsulate(ctx, trace, &scratch->peer, IDENTITY_WORLD);
}

/* Delivers a packet from outside to a local pod; with legacy routing the kernel does (TO_STACK),
 * unless the packet came by the tunnel. Returns a verdict.
 */
static __always_inline int AF_FN(deliver_or_pass)(CTX *ctx, scratch_t *scratch,
						  const struct lxc_value *receiver,
						  enum delivery how)
{
	if (!options.packet.legacy_routing || FROM_TUNNEL)
		return AF_FN(deliver)(ctx, scratch, receiver, how);
	if (how == FROM_NETWORK && !scratch->reverse_translated && !scratch->packet.related &&
	    !scratch->packet.ct_error)
		AF_FN(delete_nodeport_entry)(scratch);
	return TO_STACK;
}

/* A request to a service. Returns a verdict. */
GLOBAL int AF_FN(nodeport)(CTX *ctx, scratch_t *scratch)
{
	packet_t *packet;
	const struct lxc_value *local;
	struct trace_ctx *trace;
	int error;

	scratch = OWN_SCRATCH(scratch);
	if (!scratch)
		return -DROP_INVALID;
	trace = &scratch->trace;
	packet = &scratch->packet;
	if (!AF_FN(in_source_range)(packet, &scratch->service))
		return FAIL(trace, DROP_SOURCE_RANGE);
	if (!(scratch->service.flags & LB_ROUTABLE))
		return FAIL(trace, DROP_IS_CLUSTER_IP);
	__builtin_memset(&scratch->translation, 0, sizeof(scratch->translation));
	if (options.packet.ipip_termination && scratch->is_decapsulated) {
		error = AF_FN(choose_decapsulated)(scratch);
		if (error)
			return FAIL(trace, error);
	}
	error = AF_FN(translate)(ctx, scratch);
	if (error == REFUSE)
		return AF_FN(refuse)(ctx, scratch);
	if (error == DROP_NO_SERVICE && options.packet.reply_no_backend)
		return AF_FN(reply_error)(ctx, packet, AF_FN(NO_BACKEND), ctx->len);
	if (error)
		return FAIL(trace, error);
	if (packet->ct_error)
		return FAIL(trace, packet->ct_error);
	local = AF_FN(lxc_lookup)(packet->daddr);
	if (dsr_forwards(&scratch->service) && !local && !AF_FN(keeps_source)(scratch)) {
		AF_FN(learn_neighbour)(ctx, packet);
		return AF_FN(dsr_request)(ctx, scratch);
	}
	error = AF_FN(nodeport_track)(ctx, scratch);
	if (error)
		return FAIL(trace, error);
#if AF == 6
	if (options.packet.nat46x64 && is_embedded(packet->daddr)) {
		if (packet->hop_limit <= 1)
			return request_time_exceeded6(ctx, scratch);
		return nat64_request(ctx, scratch);
	}
#endif
	if (local && !(local->flags & (LXC_HOST | LXC_AT_HOST_NS))) {
		/* The client's identity matters only for local policies. */
		if (!FROM_TUNNEL)
			trace->source_identity = AF_FN(identity_of)(packet->saddr);
		if (packet->hop_limit <= 1)
			return AF_FN(request_time_exceeded)(ctx, scratch);
		return AF_FN(deliver_or_pass)(ctx, scratch, local, FROM_SERVICE);
	}
	if (local)
		return TC_ACT_OK;
	if (!FROM_TUNNEL)
		AF_FN(learn_neighbour)(ctx, packet);
	trace->source_identity = 0;
	return AF_FN(nodeport_remote)(ctx, scratch);
}
