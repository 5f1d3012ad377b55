/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Direct server return in tc programs, of one address family. */

/* A packet that exceeds the MTU, grown if it tells the service's address: answered with an ICMP
 * error, but for grown packets only if that is configured, else dropped. Returns a verdict, or a
 * drop reason, which is negative.
 */
static __always_inline int AF_FN(dsr_frag_needed)(CTX *ctx, scratch_t *scratch, int encodes)
{
	__u32 growth = encodes ? AF_FN(dsr_growth)() : 0, mtu = scratch->mtu - growth;
	struct trace_ctx *trace = &scratch->trace;
	int error;

	if ((encodes && !options.packet.dsr_icmp) || scratch->mtu <= growth)
		return FAIL(trace, DROP_TOO_LARGE);
	error = AF_FN(untranslate)(ctx, scratch);
	if (error)
		return FAIL(trace, error);
	return AF_FN(send_frag_needed)(ctx, &scratch->packet, trace, mtu);
}

/* Sends a packet to a backend on another node, which answers the client itself. Returns a verdict.
 */
GLOBAL int AF_FN(dsr_request)(CTX *ctx, scratch_t *scratch)
{
	packet_t *packet;
	struct trace_ctx *trace;
	int verdict, error, encodes;

	/* Kernels before 6.8 verify this without a caller. */
	scratch = OWN_SCRATCH(scratch);
	if (!scratch || options.packet.dsr == DSR_NONE)
		return -DROP_INVALID;
	trace = &scratch->trace;
	packet = &scratch->packet;
	trace->file = METRIC_FILE_NODEPORT;
	trace->direction = METRIC_EGRESS;
	if (options.packet.dsr != DSR_IPIP && packet->hop_limit <= 1)
		return AF_FN(request_time_exceeded)(ctx, scratch);
	/* Its segments would be too large. */
	if (ctx->gso_size)
		scratch->translation.anew = 0;
	scratch->length = AF_FN(dsr_needs_option)(scratch) ? AF_FN(dsr_length)(ctx, packet) : 0;
	/* A packet inside another one goes no hop further. */
	verdict = AF_FN(route)(ctx, scratch, options.packet.dsr != DSR_IPIP);
	scratch->length = 0;
	/* Most probably its backend is the one that it had, and knows the service. */
	if (verdict == -DROP_TOO_LARGE && options.packet.dsr == DSR_OPTION &&
	    scratch->translation.anew) {
		scratch->translation.anew = 0;
		verdict = AF_FN(route)(ctx, scratch, 1);
	}
	/* Asked again: of a variable that lives through the call, the verifier of Linux 6.1 follows
	 * one value only, and removes the code for the other.
	 */
	encodes = AF_FN(dsr_needs_option)(scratch);
	if (verdict == -DROP_TOO_LARGE)
		return AF_FN(dsr_frag_needed)(ctx, scratch, encodes);
	if (verdict < 0)
		return verdict;
	if (encodes) {
		error = AF_FN(dsr_dispatch)(ctx, scratch);
		if (error)
			return FAIL(trace, error);
	}
	/* Its source is right. */
	mark_snat_done(ctx);
	return verdict;
}

/* The entry of a flow that came by a service, and goes on. */
static __always_inline int AF_FN(dsr_is_live)(const struct ct_entry *entry, __u32 now)
{
	return entry && (entry->flags & (CT_NODE_PORT | CT_DSR)) && !(entry->flags & CT_CLOSING) &&
	       !ct_is_expired(entry, now);
}

/* A datagram of a flow that got a port of its own goes on from that. Returns a drop reason, or 0.
 */
static __noinline int AF_FN(dsr_client_port)(CTX *ctx, scratch_t *scratch)
{
	lb_reverse_nat_t asked ALIGNED;
	packet_t *packet = &scratch->packet;
	ct_key_t *flow = &scratch->flow;
	struct ct_entry *entry;

	AF_FN(original_destination)(scratch, &asked);
	AF_COPY(flow->daddr, asked.address);
	AF_COPY(flow->saddr, packet->saddr);
	flow->dport = packet->sport;
	flow->sport = asked.port;
	flow->flags = CT_SERVICE;
	entry = AF_FN(ct_find)(flow);
	/* Those of services of this node have an id. */
	if (!entry || entry->rev_nat_index || !entry->nat_port ||
	    ct_is_expired(entry, scratch->trace.now))
		return 0;
	ct_touch(entry, packet->proto, CT_SERVICE, packet->tcp_flags, scratch->trace.now);
	scratch->translation.sport = packet->sport;
	return AF_FN(rewrite)(ctx, packet, SOURCE, packet->saddr, entry->nat_port);
}

/* A packet that may carry a service's address, which becomes the source of replies. Returns a
 * verdict; NOT_HANDLED to continue.
 */
GLOBAL int AF_FN(dsr_receive)(CTX *ctx, scratch_t *scratch)
{
	struct translation *service;
	packet_t *packet;
	struct ct_entry *entry;
	struct trace_ctx *trace;
	int error;
	__u32 now;

	scratch = OWN_SCRATCH(scratch);
	if (!scratch)
		return -DROP_INVALID;
	if (options.packet.dsr != DSR_OPTION)
		return NOT_HANDLED;
	trace = &scratch->trace;
	packet = &scratch->packet;
	service = &scratch->translation;
	now = trace->now;
	AF_FN(ct_forward)(packet, &scratch->flow, CT_EGRESS);
	entry = AF_FN(ct_find)(&scratch->flow);
	if (!AF_FN(dsr_decode)(ctx, packet, service)) {
		if (!entry || !(entry->flags & CT_DSR))
			return NOT_HANDLED;
		ct_count(ctx, entry);
		/* The client sends to the backend, not to the service. */
		if ((packet->proto != IPPROTO_TCP || tcp_opens(packet->tcp_flags)) &&
		    packet->fragment != FRAGMENT_LATER)
			entry->flags &= ~CT_DSR;
		else
			ct_touch(entry, packet->proto, CT_EGRESS, packet->tcp_flags, now);
		return NOT_HANDLED;
	}
	if (packet->proto == IPPROTO_UDP && entry && AF_FN(is_other_service)(scratch, entry)) {
		error = AF_FN(dsr_client_port)(ctx, scratch);
		if (error)
			return FAIL(trace, error);
		AF_FN(ct_forward)(packet, &scratch->flow, CT_EGRESS);
		entry = AF_FN(ct_find)(&scratch->flow);
	}
	if (!AF_FN(dsr_is_live)(entry, now))
		goto fresh;
	if (AF_FN(is_other_service)(scratch, entry)) {
		/* Its next packets do not tell whose they are. */
		if (packet->proto == IPPROTO_TCP)
			return AF_FN(refuse)(ctx, scratch);
		error = AF_FN(allocate_client_port)(ctx, scratch);
		if (error)
			return FAIL(trace, error);
		goto fresh;
	}
	if (entry->flags & CT_DSR) {
		ct_count(ctx, entry);
		ct_touch(entry, packet->proto, CT_EGRESS, packet->tcp_flags, now);
		return NOT_HANDLED;
	}
fresh:
	__builtin_memset(&scratch->fresh, 0, sizeof(scratch->fresh));
	scratch->fresh.flags = CT_DSR;
	scratch->fresh.source_identity = world_identity(options.packet.dual_stack, AF == 6);
	copy6(scratch->fresh.nat_address, service->address);
	scratch->fresh.nat_port = service->port;
	AF_FN(ct_set_client_port)(&scratch->fresh, service->sport);
	return AF_FN(ct_create)(ctx, scratch, CT_EGRESS, 0) ? FAIL(trace, DROP_CT_CREATE) : 0;
}
