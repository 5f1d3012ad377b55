/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Packets of one address family that pods send. */

/* A forged tunnel packet: other nodes would accept it with any identity. */
static __always_inline int AF_FN(is_encapsulated)(const packet_t *packet)
{
	return options.packet.tunnel && packet->proto == IPPROTO_UDP &&
	       packet->dport == bpf_htons(options.packet.tunnel_port);
}

/* The sender is a backend of the local redirect policy, with skipRedirectFromBackend. */
static __noinline int AF_FN(skips_redirect)(const scratch_t *scratch)
{
	lb_skip_key_t key = {
		.netns_cookie = scratch->sender.netns_cookie,
		.port = scratch->packet.dport,
	};

	AF_COPY(key.address, scratch->packet.daddr);
	return key.netns_cookie && bpf_map_lookup_elem(&SKIP, &key);
}

/* Resolves a collision of flows of a pod to one backend; `entry` is the found entry, or NULL.
 * Returns 0, a drop reason, or less: a new flow with an allocated port. Not inlined, for the stack
 * of its caller.
 */
static __noinline int AF_FN(resolve_collision)(CTX *ctx, scratch_t *scratch,
					       const struct ct_entry *entry)
{
	int error;

	if (entry &&
	    (scratch->trace.reason != CT_RESULT_ESTABLISHED || AF_FN(is_same_flow)(scratch, entry)))
		return 0;
	if (!entry)
		entry = AF_FN(half_closed)(scratch);
	if (!entry || !AF_FN(is_other_service)(scratch, entry))
		return 0;
	error = AF_FN(allocate_client_port)(ctx, scratch);
	scratch->trace.reason = CT_RESULT_NEW;
	return error ? error : -1;
}

/* Egress of a parsed packet. Returns a verdict. */
static __always_inline int AF_FN(send_tracked)(CTX *ctx, scratch_t *scratch)
{
	lb_service_key_t *key = &scratch->key;
	struct translation *translation = &scratch->translation;
	const struct endpoint *sender = &scratch->sender;
	packet_t *packet = &scratch->packet;
	struct trace_ctx *trace = &scratch->trace;
	const struct lb_service *svc = NULL;
	const struct lxc_value *local = NULL;
	const struct ct_entry *entry = NULL;
	enum ct_result result;
	int error, looked_up = 0, loopback = 0;
	__be16 proxy_port = 0;

	__builtin_memset(translation, 0, sizeof(*translation));
	translation->loopback = 1;

	if (options.packet.services && has_ports(packet->proto)) {
		if (packet->error)
			return FAIL(trace, packet->error);
		__builtin_memset(key, 0, sizeof(*key));
		key->dport = packet->dport;
		key->proto = packet->proto;
		AF_COPY(key->address, packet->daddr);
		svc = AF_FN(master)(key);
		if (DEBUGS(trace))
			AF_FN(debug_frontend)(ctx, scratch, svc != NULL);
		if (!svc && !packet->ct_error) {
			entry = AF_FN(ct_lookup)(ctx, scratch, CT_EGRESS, CT_REVERSE_FIRST);
			local = AF_FN(lxc_lookup)(packet->daddr);
			looked_up = 1;
			/* Surrogates are for node addresses only. */
			if (!entry && (!local || (local->flags & LXC_HOST))) {
				svc = AF_FN(surrogate)(key, 0, 1);
				if (svc) {
					AF_FN(ct_address)(translation->address, packet->daddr);
					translation->port = packet->dport;
				}
			}
		}
		if (svc && (lb_is_l7(svc) || (svc->flags2 & LB2_NAT46X64) ||
			    ((svc->flags2 & LB2_LOCAL_REDIRECT) && AF_FN(skips_redirect)(scratch))))
			svc = NULL;
	}
	if (svc) {
		scratch->service = *svc;
		error = AF_FN(translate)(ctx, scratch);
		if (error == DROP_NO_SERVICE && options.packet.reply_no_backend)
			return AF_FN(reply_error)(ctx, packet, AF_FN(NO_BACKEND), ctx->len);
		if (error)
			return FAIL(trace, error);
		looked_up = 0;
		loopback = translation->loopback;
	}
	if (packet->ct_error)
		return FAIL(trace, packet->ct_error);
	if (!looked_up) {
		entry = AF_FN(ct_lookup)(ctx, scratch, CT_EGRESS,
					 svc ? CT_FORWARD : CT_REVERSE_FIRST);
		/* Local endpoints by hash, others by longest prefix. */
		local = AF_FN(lxc_lookup)(packet->daddr);
	}
	if (svc) {
		error = AF_FN(resolve_collision)(ctx, scratch, entry);
		if (error > 0)
			return FAIL(trace, error);
		if (error)
			entry = NULL;
	}
	result = trace->reason;
	if (entry && (entry->flags & CT_LOOPBACK))
		loopback = 1;

	if (loopback)
		local = AF_FN(lxc_lookup)(sender->AF_FN(ipv));
	if (local)
		trace->destination_identity =
			local->flags & LXC_HOST ? IDENTITY_HOST : local->identity;
	else
		trace->destination_identity = AF_FN(find_peer)(ctx, scratch, packet->daddr);
	/* Replies take the tunnel if the flow did. */
	if (options.packet.tunnel && entry && (entry->flags2 & CT2_FROM_TUNNEL))
		scratch->peer.flags &= ~IPCACHE_SKIP_TUNNEL;

	if (result != CT_RESULT_REPLY && result != CT_RESULT_RELATED && !loopback) {
		AF_FN(init_policy_lookup)(scratch, sender->id, trace->destination_identity,
					  POLICY_EGRESS, sender->flags);
		if (AF_FN(is_encapsulated)(packet))
			error = DROP_ENCAPSULATION;
		else
			error = AF_FN(bypasses_policy)(packet)
					? 0
					: policy_check(ctx, trace, &scratch->lookup);
		if ((error || result == CT_RESULT_NEW) && (sender->verdicts & VERDICT_EGRESS))
			send_verdict(ctx, trace, &scratch->lookup, error);
		if (error)
			return FAIL(trace, error);
		proxy_port = scratch->lookup.proxy_port;
	}
	if (result == CT_RESULT_NEW || (entry && result == CT_RESULT_ESTABLISHED &&
					(!AF_FN(is_same_flow)(scratch, entry) ||
					 !(entry->flags & CT_PROXY_REDIRECT) != !proxy_port))) {
		__builtin_memset(&scratch->fresh, 0, sizeof(scratch->fresh));
		scratch->fresh.source_identity = sender->identity;
		scratch->fresh.rev_nat_index = translation->rev_nat_index;
		scratch->fresh.flags =
			(loopback ? CT_LOOPBACK : 0) | (proxy_port ? CT_PROXY_REDIRECT : 0);
		__builtin_memcpy(scratch->fresh.nat_address, translation->address,
				 sizeof(scratch->fresh.nat_address));
		scratch->fresh.nat_port = translation->port;
		AF_FN(ct_set_client_port)(&scratch->fresh, translation->sport);
		if (entry)
			DEBUG(ctx, trace, DEBUG_STALE_CT, translation->rev_nat_index,
			      entry->rev_nat_index);
		if (entry)
			flow_raise_epoch();
		if (AF_FN(ct_create)(ctx, scratch, CT_EGRESS, 1))
			return FAIL(trace, DROP_CT_CREATE);
	}
	if (proxy_port)
		return AF_FN(to_proxy)(ctx, scratch, proxy_port);

	if (options.packet.identity_mark)
		ctx->mark = mark_with_identity(ctx->mark & ~MARK_MASK, sender->identity) |
			    MARK_IDENTITY;
	error = TC_ACT_OK;
	scratch->next_hop.ifindex = 0;
	if (local && !(local->flags & (LXC_HOST | LXC_AT_HOST_NS))) {
		/* The kernel routes to pods with cil_to_container. */
		if (!options.packet.legacy_routing || loopback || !has_egress_program(local))
			return AF_FN(deliver)(ctx, scratch, local, FROM_POD);
		goto out;
	}
	if (options.packet.host_firewall && local && (local->flags & LXC_HOST)) {
		error = AF_FN(host_policy)(ctx, scratch, sender->identity, POLICY_INGRESS, 0);
		if (error)
			return error;
	}
	/* Replies to the node's health checker. */
	if (options.packet.health_probes && local) {
		const struct ct_entry *probe = AF_FN(nodeport_flow)(ctx, scratch);

		error = probe ? AF_FN(reverse_translate)(ctx, scratch, probe) : 0;
		if (error)
			return FAIL(trace, error);
	}
#if AF == 4
	if (options.packet.nat46x64 && local && is_nat64_reply(ctx, scratch))
		return nat46(ctx, scratch, CONTINUE_AS_IPV6);
#else
	if (options.packet.nat46x64 && !local && is_embedded(packet->daddr)) {
		error = nat46_reply(ctx, scratch);
		if (error)
			return error;
	}
#endif
	error = TC_ACT_OK;
	if (options.packet.tunnel && !local && is_tunnelled(&scratch->peer))
		return encapsulate(ctx, trace, &scratch->peer, sender->identity);
	if (!local && !options.packet.legacy_routing) {
		error = AF_FN(route)(ctx, scratch, 1);
		/* The kernel fragments the packet or sends an ICMP error. */
		if (error == -DROP_TOO_LARGE)
			error = TC_ACT_OK;
		if (error < 0)
			return error;
		/* The packet was replaced by a reply to the sender. */
		if (error != TC_ACT_OK && !scratch->next_hop.ifindex)
			return error;
	}
out:
	COUNT_PACKET(ctx, REASON_FORWARDED, METRIC_EGRESS, METRIC_FILE_LXC);
	CAPTURE(ctx, trace, CAPTURE_DELIVERY, scratch->next_hop.ifindex);
	trace_packet(ctx, trace, scratch->next_hop.ifindex ? TRACE_TO_NETWORK : TRACE_TO_STACK,
		     scratch->next_hop.ifindex, NULL);
	return error;
}

#if AF == 6
/* Loopback through a service has a link-local client address, which unbound servers answer from the
 * pod's link-local address: restores the source. Returns a drop reason, or 0.
 */
GLOBAL int fix_loopback_source(CTX *ctx, struct scratch6 *scratch)
{
	const struct ct_entry *entry;
	struct packet6 *packet;

	scratch = OWN_SCRATCH(scratch);
	if (!scratch)
		return DROP_INVALID;
	packet = &scratch->packet;
	ct_reverse6(packet, &scratch->flow, CT_EGRESS);
	copy6(scratch->flow.saddr, scratch->sender.ipv6);
	entry = ct_find6(&scratch->flow);
	if (!entry || !(entry->flags & CT_LOOPBACK) || ct_is_expired(entry, scratch->trace.now))
		return 0;
	return rewrite_address6(ctx, packet, SOURCE, scratch->sender.ipv6);
}
#endif

/* A packet sent by a pod. Returns a verdict. */
GLOBAL int AF_FN(send)(CTX *ctx, scratch_t *scratch)
{
	const struct endpoint *sender;
	packet_t *packet;
	struct trace_ctx *trace;
	__u8 error;

	scratch = OWN_SCRATCH(scratch);
	if (!scratch)
		return -DROP_INVALID;
	sender = &scratch->sender;
	packet = &scratch->packet;
	trace = &scratch->trace;
	error = AF_FN(read_packet)(ctx, scratch);
	if (error)
		return FAIL(trace, error);
#if AF == 6
	if (packet->proto == IPPROTO_ICMPV6)
		DEBUG(ctx, trace, DEBUG_ICMP6, packet->icmp_type, 0);
	/* Duplicate address detection precedes assigned addresses. */
	if (packet->proto == IPPROTO_ICMPV6 && packet->icmp_type == ICMP6_SOLICITATION)
		return reply_solicitation(ctx, packet, sender->mac, trace, 1);
	if (packet->proto == IPPROTO_ICMPV6 && packet->icmp_type == ICMP6_ADVERTISEMENT)
		return TC_ACT_OK;
	if (is_link_local(packet->saddr) && same6(packet->daddr, packet_options()->loopback6)) {
		error = fix_loopback_source(ctx, scratch);
		if (error)
			return FAIL(trace, error);
	}
#endif
	if ((sender->flags & ENDPOINT_VERIFY_SOURCE) && !AF_SAME(packet->saddr, sender->AF_FN(ipv)))
		return FAIL(trace, DROP_INVALID_SOURCE);
	/* The first fragment was not seen. */
	if (packet->error && packet->fragment)
		return FAIL(trace, packet->error);
	return AF_FN(send_tracked)(ctx, scratch);
}
