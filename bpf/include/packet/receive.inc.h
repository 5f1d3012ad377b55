/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Delivery of packets of one address family to pods of the node. */

/* Deletes the NodePort entry of a new direct flow with the same ports: its replies must not be
 * translated.
 */
static __always_inline void AF_FN(delete_nodeport_entry)(scratch_t *scratch)
{
	const packet_t *packet = &scratch->packet;
	const struct ct_entry *entry;

	AF_FN(ct_forward)(packet, &scratch->flow, CT_EGRESS);
	entry = AF_FN(ct_find)(&scratch->flow);
	if (!entry || !(entry->flags & CT_NODE_PORT))
		return;
	/* Unless XDP just translated this packet: then the entry is new, or of an open connection.
	 */
	if (options.packet.xdp &&
	    ((packet->proto == IPPROTO_TCP && !tcp_opens(packet->tcp_flags)) ||
	     (!(entry->flags & (CT_CLOSING | CT_SEEN_NON_SYN)) &&
	      entry->last_tx_report + options.packet.ct_report_interval >= scratch->trace.now)))
		return;
	flow_raise_epoch();
	if (scratch->flow.proto == IPPROTO_TCP)
		bpf_map_delete_elem(&AF_JOIN(cilium_ct, _global), &scratch->flow);
	else
		bpf_map_delete_elem(&AF_JOIN(cilium_ct_any, _global), &scratch->flow);
}

/* Reverse-translates an ICMP error about a packet to a backend: destination of `inner`, and source
 * of the error if it is the backend's. With `outside`, only of service flows. Returns a drop
 * reason, or 0.
 */
GLOBAL int AF_FN(translate_error)(CTX *ctx, scratch_t *scratch, __u32 outside)
{
	lb_reverse_nat_t to ALIGNED;
	const struct ct_entry *entry;
	packet_t *packet, *inner;
	__be16 client_port;
	int error;

	scratch = OWN_SCRATCH(scratch);
	if (!scratch)
		return DROP_INVALID;
	packet = &scratch->packet;
	inner = &scratch->inner;
	scratch->is_about_service = 0;
	AF_FN(ct_forward)(inner, &scratch->flow, CT_EGRESS);
	entry = AF_FN(ct_find)(&scratch->flow);
	if (!entry || !AF_FN(service_of)(entry, &to))
		return 0;
	scratch->is_about_service = (entry->flags & by_service()) != 0;
	if (outside && !scratch->is_about_service)
		return 0;
	/* A loopback flow, or one with an allocated source port. */
	client_port = AF_FN(ct_client_port)(entry);
	if ((entry->flags & CT_LOOPBACK) || client_port) {
		error = AF_FN(rewrite_inner)(ctx, scratch, SOURCE, packet->daddr,
					     client_port ? client_port : inner->sport);
		if (error)
			return error;
	}
	if (options.packet.dsr == DSR_OPTION) {
		error = AF_FN(dsr_unquote)(ctx, scratch);
		if (error)
			return error;
	}
	error = AF_FN(rewrite_inner)(ctx, scratch, DESTINATION, to.address,
				     to.port ? to.port : inner->dport);
	if (error || !scratch->is_about_service || !AF_SAME(packet->saddr, inner->daddr))
		return error;
	AF_COPY(inner->daddr, to.address);
	return AF_FN(rewrite_address)(ctx, packet, SOURCE, to.address);
}

/* An ICMP error of a router about a tracked flow of its receiver, which passed the policies: so
 * does the error.
 */
GLOBAL int AF_FN(is_about_flow)(CTX *ctx, scratch_t *scratch)
{
	const struct ct_entry *entry;
	packet_t *inner;

	scratch = OWN_SCRATCH(scratch);
	if (!scratch)
		return 0;
	inner = &scratch->inner;
	if (!scratch->packet.related || !AF_FN(parse_inner)(ctx, &scratch->packet, inner) ||
	    !AF_SAME(inner->saddr, scratch->packet.daddr))
		return 0;
	AF_FN(ct_forward)(inner, &scratch->flow, CT_EGRESS);
	entry = AF_FN(ct_find)(&scratch->flow);
	if (!entry || ct_is_expired(entry, scratch->trace.now)) {
		/* A reply. */
		AF_FN(ct_reverse)(inner, &scratch->flow, CT_EGRESS);
		entry = AF_FN(ct_find)(&scratch->flow);
	}
	return entry && !ct_is_expired(entry, scratch->trace.now);
}

/* Enforces the receiver's ingress policy. Returns a drop reason, or 0; or ADMIT_ERROR. Not inlined,
 * for the stack of `receive`.
 */
static __noinline int AF_FN(check_ingress_policy)(CTX *ctx, scratch_t *scratch, int is_new)
{
	const packet_t *packet = &scratch->packet;
	struct trace_ctx *trace = &scratch->trace;
	__u32 ifindex = scratch->next_hop.ifindex;
	const struct endpoint *facts = bpf_map_lookup_elem(&skep_endpoints, &ifindex);
	int denied;

	AF_FN(init_policy_lookup)(scratch, trace->destination, trace->source_identity,
				  POLICY_INGRESS, facts ? facts->flags : 0);
	denied = AF_FN(bypasses_policy)(packet) ? 0 : policy_check(ctx, trace, &scratch->lookup);
	if (denied && packet->related && AF_FN(is_about_flow)(ctx, scratch)) {
		trace->reason = CT_RESULT_RELATED;
		return ADMIT_ERROR;
	}
	if (denied && AF_SAME(packet->saddr, packet->daddr))
		return 0;
	if ((denied || is_new) && facts && (facts->verdicts & VERDICT_INGRESS))
		send_verdict(ctx, trace, &scratch->lookup, denied);
	return denied;
}

/* Ingress of a pod: conntrack, policy, reverse translation. Returns 0 to deliver, TO_PROXY, or
 * less: a drop reason.
 */
GLOBAL int AF_FN(receive)(CTX *ctx, scratch_t *scratch, __u32 how)
{
	const struct ct_entry *entry;
	packet_t *packet;
	struct trace_ctx *trace;
	enum ct_scope scope = CT_REVERSE_FIRST;
	enum ct_result result;
	__be32 original[4] = {};
	int loopback = 0, denied = 0;
	__u32 ifindex;
	__u8 error;

	scratch = OWN_SCRATCH(scratch);
	if (!scratch)
		return -DROP_INVALID;
	trace = &scratch->trace;
	packet = &scratch->packet;
	ifindex = scratch->next_hop.ifindex;
	AF_TO_WORDS(original, packet->saddr);
	if (packet->ct_error)
		return FAIL(trace, packet->ct_error);
	/* Egress of the sender has looked up the flow. */
	if ((how == FROM_POD || how == FROM_SERVICE) &&
	    (trace->reason == CT_RESULT_ESTABLISHED || trace->reason == CT_RESULT_NEW))
		scope = CT_FORWARD_FIRST;
	entry = AF_FN(ct_lookup)(ctx, scratch, CT_INGRESS, scope);
	result = trace->reason;
	if (entry && (result == CT_RESULT_REPLY || result == CT_RESULT_RELATED)) {
		/* The proxy answers the pod, not the server. */
		if ((entry->flags & CT_PROXY_REDIRECT) && how != FROM_EGRESS_PROXY &&
		    result == CT_RESULT_REPLY)
			return TO_PROXY;
		error = AF_FN(reverse_translate)(ctx, scratch, entry);
		if (error)
			return FAIL(trace, error);
		goto accepted;
	}

	/* Loopback through a service. */
	if (how == FROM_POD)
		loopback = AF_SAME(packet->saddr, AF_OPTION(loopback));
	if (entry && (entry->flags & CT_LOOPBACK))
		loopback = 1;
	if (!loopback && how != FROM_INGRESS_PROXY) {
		denied = AF_FN(check_ingress_policy)(ctx, scratch, result == CT_RESULT_NEW);
		if (denied == ADMIT_ERROR)
			goto accepted;
		if (denied)
			return FAIL(trace, denied);
	}
	if (result == CT_RESULT_NEW) {
		if (how == FROM_NETWORK)
			AF_FN(delete_nodeport_entry)(scratch);
		__builtin_memset(&scratch->fresh, 0, sizeof(scratch->fresh));
		scratch->fresh.source_identity = trace->source_identity;
		scratch->fresh.flags = loopback ? CT_LOOPBACK : 0;
		scratch->fresh.flags2 = FROM_TUNNEL ? CT2_FROM_TUNNEL : 0;
		if (AF_FN(ct_create)(ctx, scratch, CT_INGRESS, 1))
			return FAIL(trace, DROP_CT_CREATE);
	}
accepted:
	if (packet->related && AF_FN(parse_inner)(ctx, packet, &scratch->inner)) {
		error = AF_FN(translate_error)(ctx, scratch, 0);
		if (error)
			return FAIL(trace, error);
	}
	COUNT_PACKET(ctx, REASON_FORWARDED, METRIC_INGRESS, METRIC_FILE_LXC);
	CAPTURE(ctx, trace, CAPTURE_DELIVERY, ifindex);
	trace_packet(ctx, trace, TRACE_TO_ENDPOINT, ifindex, original);
	return 0;
}

/* Delivers the packet to a local pod. Returns a verdict. */
static __always_inline int AF_FN(deliver)(CTX *ctx, scratch_t *scratch,
					  const struct lxc_value *receiver, enum delivery how)
{
	struct trace_ctx *trace = &scratch->trace;
	struct ethernet *ethernet;
	int error;

	DEBUG(ctx, trace, DEBUG_LOCAL_DELIVERY, receiver->endpoint, trace->source_identity);
	error = AF_FN(take_hop_or_reply)(ctx, &scratch->packet, trace);
	if (error)
		return error;
	ethernet = packet_bytes(ctx, 0, sizeof(*ethernet));
	if (!ethernet)
		return FAIL(trace, DROP_WRITE);
	copy_mac(ethernet->source, receiver->node_mac);
	copy_mac(ethernet->destination, receiver->mac);
	if (!throttle_ingress(ctx, receiver->endpoint))
		return TC_ACT_SHOT;
	COUNT_PACKET(ctx, REASON_FORWARDED, how == FROM_POD ? METRIC_EGRESS : METRIC_INGRESS,
		     METRIC_FILE_LOCAL_DELIVERY);
	/* cil_to_container at the interface enforces the policy, except for loopback packets. */
	if ((is_from_stack(how) ||
	     (options.packet.legacy_routing && receiver->ifindex != ctx->ifindex)) &&
	    has_egress_program(receiver)) {
		if (how == FROM_NETWORK)
			AF_FN(delete_nodeport_entry)(scratch);
		ctx->mark = mark_with_identity(ctx->mark & ~MARK_MASK, trace->source_identity) |
			    (how == FROM_INGRESS_PROXY	? MARK_INGRESS_PROXY
			     : how == FROM_EGRESS_PROXY ? MARK_EGRESS_PROXY
							: MARK_IDENTITY);
		flow_note_exit(FLOW_REDIRECT, receiver->ifindex);
		return bpf_redirect(receiver->ifindex, 0);
	}
	trace_as(trace, receiver->events);
	trace->endpoint = receiver->endpoint;
	trace->destination = receiver->endpoint;
	trace->destination_identity = receiver->identity;
	trace->direction = METRIC_INGRESS;
	trace->file = METRIC_FILE_LXC;
	scratch->next_hop.ifindex = receiver->ifindex;
	error = AF_FN(receive)(ctx, scratch, how);
	if (error == TO_PROXY)
		return AF_FN(to_proxy)(ctx, scratch, 0);
	if (error)
		return error;
	if (is_from_stack(how) || options.packet.legacy_routing) {
		flow_note_exit(FLOW_REDIRECT, receiver->ifindex);
		return bpf_redirect(receiver->ifindex, 0);
	}
	flow_note_exit(FLOW_PEER, receiver->ifindex);
	/* The inner frame has a MAC address of the other node. */
	if (FROM_TUNNEL)
		bpf_skb_change_type(ctx, PACKET_HOST);
	return bpf_redirect_peer(receiver->ifindex, 0);
}
