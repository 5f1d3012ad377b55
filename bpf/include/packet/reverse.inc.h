/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Replies of services to clients outside, and ICMP errors about them, of one address family. */

/* Restores a reverse-translated reply as it was received. Returns a drop reason, or 0. */
static __always_inline int AF_FN(undo_reverse)(CTX *ctx, scratch_t *scratch)
{
	const nat_key_t *sent = &scratch->reverse_key;
	int error = AF_FN(rewrite)(ctx, &scratch->packet, SOURCE, sent->saddr, sent->sport);

	if (error)
		return error;
	return AF_FN(rewrite)(ctx, &scratch->packet, DESTINATION, sent->daddr, sent->dport);
}

/* A reply exceeds the MTU to the client: sends the backend an ICMP error. Returns a verdict. */
GLOBAL int AF_FN(reply_frag_needed)(CTX *ctx, scratch_t *scratch)
{
	int error;

	scratch = OWN_SCRATCH(scratch);
	if (!scratch)
		return -DROP_INVALID;
	error = AF_FN(undo_reverse)(ctx, scratch);
	return error ? FAIL(&scratch->trace, error)
		     : AF_FN(send_frag_needed)(ctx, &scratch->packet, &scratch->trace,
					       scratch->mtu);
}

#if AF == 6
/* A reply exceeds its hop limit. Returns a verdict. */
GLOBAL int reply_time_exceeded(CTX *ctx, struct scratch6 *scratch)
{
	int error;

	scratch = OWN_SCRATCH(scratch);
	if (!scratch)
		return -DROP_INVALID;
	error = undo_reverse6(ctx, scratch);
	return error ? FAIL(&scratch->trace, error)
		     : send_time_exceeded6(ctx, &scratch->packet, &scratch->trace);
}
#endif

/* Forwards a reply to a client, or to another node with this identity. Returns a verdict. */
static __always_inline int AF_FN(send_reply)(CTX *ctx, scratch_t *scratch, __u32 identity)
{
	int error;

	if (options.packet.tunnel) {
		AF_FN(find_peer)(ctx, scratch, scratch->packet.daddr);
		if (is_tunnelled(&scratch->peer)) {
			error = AF_FN(take_hop_or_reply)(ctx, &scratch->packet, &scratch->trace);
			if (error)
				return error;
			return encapsulate(ctx, &scratch->trace, &scratch->peer, identity);
		}
	}
	error = AF_FN(route)(ctx, scratch, 1);
	/* Fall back to the kernel's routing table. */
	return error ? error : TO_STACK;
}

/* Translates an ICMP error about a reply of a service to one about the backend's packet, and
 * forwards it to the backend. Returns a verdict.
 */
GLOBAL int AF_FN(error_to_backend)(CTX *ctx, scratch_t *scratch)
{
	const lb_backend_t *backend;
	const nat_entry_t *nat;
	packet_t *inner;
	struct ct_entry *entry;
	__u32 backend_id;
	__be16 port, client_port;
	int error;

	scratch = OWN_SCRATCH(scratch);
	if (!scratch)
		return -DROP_INVALID;
	inner = &scratch->inner;
	if (!AF_FN(parse_inner)(ctx, &scratch->packet, inner) || !has_ports(inner->proto))
		return NOT_HANDLED;
	AF_FN(ct_forward)(inner, &scratch->flow, CT_SERVICE);
	entry = AF_FN(ct_find)(&scratch->flow);
	if (!entry)
		return NOT_HANDLED;
	backend_id = *ct_backend(entry);
	backend = bpf_map_lookup_elem(&BACKENDS, &backend_id);
	if (!backend)
		return NOT_HANDLED;
	port = backend->port ? backend->port : inner->sport;
	/* The backend knows the client by its SNAT source. */
	client_port = entry->nat_port ? entry->nat_port : inner->dport;
	AF_COPY(scratch->forward.daddr, backend->address);
	AF_COPY(scratch->forward.saddr, inner->daddr);
	scratch->forward.dport = port;
	scratch->forward.sport = client_port;
	scratch->forward.proto = inner->proto;
	scratch->forward.flags = NAT_FORWARD;
	nat = bpf_map_lookup_elem(&NAT, &scratch->forward);
	error = 0;
	if (nat)
		error = AF_FN(rewrite_inner)(ctx, scratch, DESTINATION, nat->address, nat->port);
	else if (entry->nat_port)
		error = AF_FN(rewrite_inner)(ctx, scratch, DESTINATION, inner->daddr, client_port);
	if (!error)
		error = AF_FN(rewrite_inner)(ctx, scratch, SOURCE, backend->address, port);
	if (!error)
		error = AF_FN(rewrite_address)(ctx, &scratch->packet, DESTINATION,
					       backend->address);
	if (error)
		return FAIL(&scratch->trace, error);
	/* The caller delivers it. */
	if (AF_FN(lxc_lookup)(scratch->packet.daddr))
		return NOT_HANDLED;
	mark_snat_done(ctx);
	return AF_FN(send_reply)(ctx, scratch, IDENTITY_WORLD);
}

/* Reverse-translates replies to SNAT packets. Returns a verdict. */
GLOBAL int AF_FN(reverse_nodeport)(CTX *ctx, scratch_t *scratch)
{
	const struct ct_entry *entry;
	struct trace_ctx *trace;
	__u8 failed;
	int error;

	scratch = OWN_SCRATCH(scratch);
	if (!scratch)
		return -DROP_INVALID;
	trace = &scratch->trace;
	error = AF_FN(nat_ingress)(ctx, scratch);
#if AF == 4
	if (error == NAT_NONE && options.packet.nat46x64 && is_nat64_reply(ctx, scratch))
		return nat46(ctx, scratch, CONTINUE_AS_IPV6);
#endif
	if (error == NAT_NONE)
		return scratch->packet.related ? AF_FN(error_to_backend)(ctx, scratch) : 0;
	if (error)
		return FAIL(trace, error);
	scratch->reverse_translated = 1;
	mark_snat_done(ctx);
	if (scratch->packet.related) {
		error = AF_FN(translate_error)(ctx, scratch, 0);
		if (error)
			return FAIL(trace, error);
	} else {
		entry = AF_FN(nodeport_flow)(ctx, scratch);
		if (!entry)
			return NOT_HANDLED;
		failed = AF_FN(reverse_translate)(ctx, scratch, entry);
		if (failed)
			return FAIL(trace, failed);
	}
#if AF == 6
	if (options.packet.nat46x64 && is_embedded(scratch->packet.daddr))
		return nat64(ctx, scratch);
#endif
	/* Errors of routers go to the kernel's routes. It rejects packets with a source of the
	 * node, which the service's address may be.
	 */
	if (scratch->packet.related &&
	    (!scratch->is_about_service || !AF_SAME(scratch->packet.saddr, scratch->inner.daddr)))
		return NOT_HANDLED;
#if AF == 6
	if (scratch->packet.hop_limit <= 1)
		return reply_time_exceeded(ctx, scratch);
#endif
	error = AF_FN(send_reply)(ctx, scratch, IDENTITY_REMOTE_NODE);
	return error == -DROP_TOO_LARGE && !scratch->packet.related
		       ? AF_FN(reply_frag_needed)(ctx, scratch)
		       : error;
}

/* The routes have another egress device for the packet. */
static __noinline int AF_FN(has_other_egress_device)(CTX *ctx, const packet_t *packet)
{
	struct bpf_fib_lookup fib = {};
	long found;

	AF_FN(init_fib_lookup)(ctx, packet->saddr, packet->daddr, &fib);
	found = bpf_fib_lookup(ctx, &fib, sizeof(fib), fib_flags());
	return (found == BPF_FIB_LKUP_RET_SUCCESS || found == BPF_FIB_LKUP_RET_NO_NEIGH ||
		found == BPF_FIB_LKUP_RET_FRAG_NEEDED) &&
	       fib.ifindex != ctx->ifindex;
}

/* Routes a reverse-translated reply: the service's address may have another egress device than the
 * backend's. Returns a verdict; TC_ACT_OK if the device is right.
 */
GLOBAL int AF_FN(route_reply)(CTX *ctx, scratch_t *scratch)
{
	struct ethernet *ethernet;
	int verdict;

	scratch = OWN_SCRATCH(scratch);
	if (!scratch)
		return -DROP_INVALID;
	if (!AF_FN(has_other_egress_device)(ctx, &scratch->packet))
		return TC_ACT_OK;
	verdict = AF_FN(route)(ctx, scratch, 0);
	if (verdict != -DROP_TOO_LARGE || scratch->packet.related)
		return verdict;
	/* Sends the backend an ICMP error about its packet, as if from outside. */
	verdict = AF_FN(rewrite)(ctx, &scratch->packet, SOURCE, scratch->flow.saddr,
				 scratch->flow.dport);
	if (!verdict)
		verdict = AF_FN(rewrite)(ctx, &scratch->packet, DESTINATION, scratch->flow.daddr,
					 scratch->flow.sport);
	if (verdict)
		return FAIL(&scratch->trace, verdict);
	verdict = AF_FN(send_frag_needed)(ctx, &scratch->packet, &scratch->trace, scratch->mtu);
	if (verdict != TC_ACT_REDIRECT)
		return verdict;
	ethernet = packet_bytes(ctx, 0, sizeof(*ethernet));
	if (!ethernet)
		return FAIL(&scratch->trace, DROP_WRITE);
	copy_mac(ethernet->destination, scratch->device.mac);
	return bpf_redirect(ctx->ifindex, BPF_F_INGRESS);
}

/* Reverse-translates replies and ICMP errors of local backends to clients outside. Returns 1 if
 * translated, 0 if not, or less: a drop reason.
 */
static __always_inline int AF_FN(reverse_service)(CTX *ctx, scratch_t *scratch)
{
	struct trace_ctx *trace = &scratch->trace;
	const struct ct_entry *entry;
	__u8 error;

	if (scratch->packet.related) {
		if (!AF_FN(parse_inner)(ctx, &scratch->packet, &scratch->inner))
			return 0;
		error = AF_FN(translate_error)(ctx, scratch, 1);
		if (error)
			return FAIL(trace, error);
		if (scratch->is_about_service)
			trace->reason = CT_RESULT_RELATED;
		return scratch->is_about_service;
	}
	entry = AF_FN(nodeport_flow)(ctx, scratch);
	if (!entry)
		return 0;
	error = AF_FN(reverse_translate)(ctx, scratch, entry);
	return error ? FAIL(trace, error) : 1;
}
