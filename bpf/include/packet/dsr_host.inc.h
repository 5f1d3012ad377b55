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
	work->length = AF_FN(dsr_tells)(packet) ? AF_FN(dsr_length)(ctx, packet) : 0;
	/* A packet inside another one goes no hop further. */
	verdict = AF_FN(route)(ctx, work, options.packet.dsr != DSR_IPIP);
	work->length = 0;
	/* Asked again: of a variable that lives through the call, the verifier of Linux 6.1 follows
	 * one value only, and removes the code for the other.
	 */
	tells = AF_FN(dsr_tells)(packet);
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

/* The packet may come from the node that a client sent it to: answers come from that address.
 * Returns 0, or less: a drop reason.
 */
GLOBAL int AF_FN(dsr_receive)(CTX *ctx, struct AF_FN(work) * work)
{
	struct translation *service;
	struct AF_FN(packet) * packet;
	struct ct_entry *entry;
	int tells, told;
	__u32 now;

	work = OWN_WORK(work);
	if (!work)
		return -DROP_INVALID;
	if (options.packet.dsr != DSR_OPTION)
		return 0;
	packet = &work->packet;
	service = &work->translation;
	now = work->path.now;
	tells = AF_FN(dsr_tells)(packet);
	told = tells && AF_FN(dsr_told)(ctx, packet, service);
	AF_FN(ct_forward)(packet, &work->flow, CT_EGRESS);
	entry = AF_FN(ct_find)(&work->flow);
	if (entry && (!(entry->flags & CT_DSR) || ct_is_expired(entry, now)))
		entry = NULL;
	if (!told) {
		if (!entry)
			return 0;
		ct_count(ctx, entry);
		/* The client sends to the backend, not to the service. */
		if (tells && packet->fragment != FRAGMENT_LATER)
			entry->flags &= ~CT_DSR;
		else
			ct_touch(entry, packet->proto, CT_EGRESS, packet->tcp_flags, now);
		return 0;
	}
	if (entry && same6(entry->nat_address, service->address) &&
	    entry->nat_port == service->port && !(entry->flags & CT_CLOSING)) {
		ct_count(ctx, entry);
		ct_touch(entry, packet->proto, CT_EGRESS, packet->tcp_flags, now);
		return 0;
	}
	__builtin_memset(&work->fresh, 0, sizeof(work->fresh));
	work->fresh.flags = CT_DSR;
	work->fresh.source_identity = world_identity(options.packet.dual_stack, AF == 6);
	copy6(work->fresh.nat_address, service->address);
	work->fresh.nat_port = service->port;
	return AF_FN(ct_create)(ctx, work, CT_EGRESS, 0) ? FAIL(&work->path, DROP_CT_CREATE) : 0;
}
