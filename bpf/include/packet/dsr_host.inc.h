/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Direct server return in tc programs, of one address family. */

/* A packet that exceeds the MTU, grown if it tells the service's address: answered with an ICMP
 * error, but for grown packets only if that is configured, else dropped. Returns a verdict, or a
 * drop reason, which is negative.
 */
static __always_inline int AF_FN(dsr_too_large)(CTX *ctx, struct AF_FN(work) * work, int tells)
{
	__u32 growth = tells ? AF_FN(dsr_growth)() : 0, mtu = work->mtu - growth;
	struct path *path = &work->path;
	int error;

	if ((tells && !options.packet.dsr_icmp) || work->mtu <= growth)
		return FAIL(path, DROP_TOO_LARGE);
	error = AF_FN(untranslate)(ctx, work);
	if (error)
		return FAIL(path, error);
	return AF_FN(tell_mtu)(ctx, &work->packet, path, mtu);
}

/* Sends a packet to a backend on another node, which answers the client itself. Returns a verdict,
 * or less: a drop reason.
 */
GLOBAL int AF_FN(dsr_request)(CTX *ctx, struct AF_FN(work) * work)
{
	struct AF_FN(packet) * packet;
	struct path *path;
	int verdict, error, tells;

	/* Kernels before 6.8 verify this where nothing calls it. */
	work = OWN_WORK(work);
	if (!work || options.packet.dsr == DSR_NONE)
		return -DROP_INVALID;
	path = &work->path;
	packet = &work->packet;
	path->file = METRIC_FILE_NODEPORT;
	path->direction = METRIC_EGRESS;
	if (options.packet.dsr != DSR_IPIP && packet->hop_limit <= 1)
		return AF_FN(request_out_of_hops)(ctx, work);
	/* Its segments would be too large. */
	if (ctx->gso_size)
		work->translation.anew = 0;
	work->length = AF_FN(dsr_tells)(work) ? AF_FN(dsr_length)(ctx, packet) : 0;
	/* A packet inside another one goes no hop further. */
	verdict = AF_FN(route)(ctx, work, options.packet.dsr != DSR_IPIP);
	work->length = 0;
	/* Most probably its backend is the one that it had, and knows the service. */
	if (verdict == -DROP_TOO_LARGE && options.packet.dsr == DSR_OPTION &&
	    work->translation.anew) {
		work->translation.anew = 0;
		verdict = AF_FN(route)(ctx, work, 1);
	}
	/* Asked again: of a variable that lives through the call, the verifier of Linux 6.1 follows
	 * one value only, and removes the code for the other.
	 */
	tells = AF_FN(dsr_tells)(work);
	if (verdict == -DROP_TOO_LARGE)
		return AF_FN(dsr_too_large)(ctx, work, tells);
	if (verdict < 0)
		return verdict;
	if (tells) {
		error = AF_FN(dsr_dispatch)(ctx, work);
		if (error)
			return FAIL(path, error);
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
static __noinline int AF_FN(dsr_own_port)(CTX *ctx, struct AF_FN(work) * work)
{
	struct AF_JOIN(lb, _reverse_nat) asked ALIGNED;
	struct AF_FN(packet) *packet = &work->packet;
	struct AF_FN(ct_key) *flow = &work->flow;
	struct ct_entry *entry;

	AF_FN(called)(work, &asked);
	AF_COPY(flow->daddr, asked.address);
	AF_COPY(flow->saddr, packet->saddr);
	flow->dport = packet->sport;
	flow->sport = asked.port;
	flow->flags = CT_SERVICE;
	entry = AF_FN(ct_find)(flow);
	/* Those of services of this node have an id. */
	if (!entry || entry->rev_nat_index || !entry->nat_port ||
	    ct_is_expired(entry, work->path.now))
		return 0;
	ct_touch(entry, packet->proto, CT_SERVICE, packet->tcp_flags, work->path.now);
	work->translation.sport = packet->sport;
	return AF_FN(rewrite)(ctx, packet, SOURCE, packet->saddr, entry->nat_port);
}

/* The packet may come from the node that a client sent it to: answers come from that address.
 * Returns 0, a verdict, or less: a drop reason.
 */
GLOBAL int AF_FN(dsr_receive)(CTX *ctx, struct AF_FN(work) * work)
{
	struct translation *service;
	struct AF_FN(packet) * packet;
	struct ct_entry *entry;
	struct path *path;
	int error;
	__u32 now;

	work = OWN_WORK(work);
	if (!work)
		return -DROP_INVALID;
	if (options.packet.dsr != DSR_OPTION)
		return 0;
	path = &work->path;
	packet = &work->packet;
	service = &work->translation;
	now = path->now;
	AF_FN(ct_forward)(packet, &work->flow, CT_EGRESS);
	entry = AF_FN(ct_find)(&work->flow);
	if (!AF_FN(dsr_told)(ctx, packet, service)) {
		if (!entry || !(entry->flags & CT_DSR))
			return 0;
		ct_count(ctx, entry);
		/* The client sends to the backend, not to the service. */
		if ((packet->proto != IPPROTO_TCP || tcp_opens(packet->tcp_flags)) &&
		    packet->fragment != FRAGMENT_LATER)
			entry->flags &= ~CT_DSR;
		else
			ct_touch(entry, packet->proto, CT_EGRESS, packet->tcp_flags, now);
		return 0;
	}
	if (packet->proto == IPPROTO_UDP && entry && AF_FN(is_of_another)(work, entry)) {
		error = AF_FN(dsr_own_port)(ctx, work);
		if (error)
			return FAIL(path, error);
		AF_FN(ct_forward)(packet, &work->flow, CT_EGRESS);
		entry = AF_FN(ct_find)(&work->flow);
	}
	if (!AF_FN(dsr_is_live)(entry, now))
		goto fresh;
	if (AF_FN(is_of_another)(work, entry)) {
		/* Its next packets do not tell whose they are. */
		if (packet->proto == IPPROTO_TCP)
			return AF_FN(refuse)(ctx, work);
		error = AF_FN(take_own_port)(ctx, work);
		if (error)
			return FAIL(path, error);
		goto fresh;
	}
	if (entry->flags & CT_DSR) {
		ct_count(ctx, entry);
		ct_touch(entry, packet->proto, CT_EGRESS, packet->tcp_flags, now);
		return 0;
	}
fresh:
	__builtin_memset(&work->fresh, 0, sizeof(work->fresh));
	work->fresh.flags = CT_DSR;
	work->fresh.source_identity = world_identity(options.packet.dual_stack, AF == 6);
	copy6(work->fresh.nat_address, service->address);
	work->fresh.nat_port = service->port;
	AF_FN(ct_set_client_port)(&work->fresh, service->sport);
	return AF_FN(ct_create)(ctx, work, CT_EGRESS, 0) ? FAIL(path, DROP_CT_CREATE) : 0;
}
