/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Services for clients outside at XDP, of one address family. */

/* Records the entries that counted the packet. */
static __always_inline void AF_FN(counted_by)(scratch_t *scratch, __u8 entries)
{
	if (options.packet.ct_accounting)
		scratch->counted = entries;
}

/* Reverts accounting of a packet that is passed to tc. Its source is restored, its destination is
 * not yet.
 */
static __noinline void AF_FN(uncount)(CTX *ctx, scratch_t *scratch)
{
	ct_key_t *flow = &scratch->flow;
	struct ct_entry *entry = NULL;

	if (scratch->counted & COUNTED_SERVICE) {
		AF_FN(ct_service)(&scratch->inner, flow);
		entry = AF_FN(ct_find)(flow);
		if (entry && entry->rev_nat_index == scratch->service.rev_nat_index &&
		    !ct_is_expired(entry, scratch->trace.now))
			ct_uncount(ctx, entry);
	}
	if (scratch->counted & COUNTED_REQUEST)
		AF_FN(ct_forward)(&scratch->packet, flow, CT_EGRESS);
	else if (scratch->counted & COUNTED_ANSWER)
		AF_FN(ct_reverse)(&scratch->packet, flow, CT_INGRESS);
	else
		return;
	entry = AF_FN(ct_find)(flow);
	if (entry)
		ct_uncount(ctx, entry);
}

/* Passes the original packet to tc: the next hop may be known to the kernel only, or after
 * neighbour resolution.
 */
static __noinline int AF_FN(pass_to_tc)(CTX *ctx, scratch_t *scratch)
{
	const packet_t *original = &scratch->inner;
	packet_t *packet = &scratch->packet;
	struct trace_ctx *trace = &scratch->trace;

	if (AF_FN(rewrite)(ctx, packet, SOURCE, original->saddr, original->sport))
		return FAIL(trace, DROP_WRITE);
	if (options.packet.ct_accounting)
		AF_FN(uncount)(ctx, scratch);
	if (AF_FN(rewrite)(ctx, packet, DESTINATION, original->daddr, original->dport))
		return FAIL(trace, DROP_WRITE);
	return XDP_PASS;
}

/* The destination is reached by the tunnel. */
static __always_inline int AF_FN(is_tunnelled_peer)(CTX *ctx, scratch_t *scratch)
{
	if (!options.packet.tunnel)
		return 0;
	AF_FN(find_peer)(ctx, scratch, scratch->packet.daddr);
	return is_tunnelled(&scratch->peer);
}

/* A packet without a next hop; `found` as of `AF_FN(find_next_hop)`. */
static __always_inline int AF_FN(no_route)(CTX *ctx, scratch_t *scratch, long found)
{
	/* tc sends "fragmentation needed" as well. */
	if (found == BPF_FIB_LKUP_RET_NOT_FWDED || found == BPF_FIB_LKUP_RET_NO_NEIGH ||
	    found == BPF_FIB_LKUP_RET_FRAG_NEEDED)
		return AF_FN(pass_to_tc)(ctx, scratch);
	scratch->trace.file = METRIC_FILE_NODEPORT;
	scratch->trace.direction = METRIC_EGRESS;
	scratch->trace.extended_error = found;
	return FAIL(&scratch->trace, DROP_NO_FIB);
}

/* Sends the packet to the next hop. Returns a verdict. */
static __always_inline int AF_FN(forward_packet)(CTX *ctx, scratch_t *scratch)
{
	__u8 error = AF_FN(take_hop)(ctx, &scratch->packet);

	return error ? FAIL(&scratch->trace, error)
		     : redirect_to(ctx, &scratch->trace, &scratch->next_hop);
}

/* Sends the packet by the tunnel, with this identity. Returns a verdict. */
GLOBAL int AF_FN(send_by_tunnel)(CTX *ctx, scratch_t *scratch, __u32 identity)
{
	const packet_t *original;
	const ip_t *ip;
	struct trace_ctx *trace;
	__u32 hash, length = packet_length(ctx) - L3 + VXLAN_ROOM;
	__u8 ecn, error;
	__be32 node;
	long found;

	scratch = OWN_SCRATCH(scratch);
	if (!scratch || !options.packet.tunnel)
		return -DROP_INVALID;
	trace = &scratch->trace;
	original = &scratch->inner;
	node = scratch->peer.endpoint[0];
	if (!writes_vxlan(&scratch->peer) || length > 0xffff)
		return AF_FN(pass_to_tc)(ctx, scratch);
	found = find_next_hop4(ctx, &scratch->next_hop, options.packet.nodeport_source4, node,
			       length);
	if (found)
		return AF_FN(no_route)(ctx, scratch, found);
	trace->file = METRIC_FILE_NODEPORT;
	trace->direction = METRIC_EGRESS;
	error = AF_FN(take_hop)(ctx, &scratch->packet);
	if (error)
		return FAIL(trace, error);
	ip = packet_bytes(ctx, L3, sizeof(*ip));
	if (!ip)
		return FAIL(trace, DROP_WRITE);
	ecn = (AF == 4 ? ((const __u8 *)ip)[1] : bpf_ntohl(*(const __be32 *)ip) >> 20) & 3;
	hash = AF_FN(packet_hash)(original->saddr, original->sport, original->dport,
				  original->proto, 0);
	error = vxlan_encapsulate(ctx, node, identity, hash, ecn);
	if (error)
		return FAIL(trace, error);
	COUNT_PACKET(ctx, REASON_FORWARDED, METRIC_EGRESS, METRIC_FILE_ENCAP);
	trace_packet(ctx, trace, TRACE_TO_OVERLAY, options.packet.tunnel_device, NULL);
	return redirect_to(ctx, trace, &scratch->next_hop);
}

/* A request to a backend on another node, with DSR. Returns a verdict. */
GLOBAL int AF_FN(dsr_request)(CTX *ctx, scratch_t *scratch)
{
	packet_t *packet;
	struct trace_ctx *trace;
	__u16 length;
	int error;
	long found;

	/* Kernels before 6.8 verify this without a caller. */
	scratch = OWN_SCRATCH(scratch);
	if (!scratch || options.packet.dsr == DSR_NONE)
		return -DROP_INVALID;
	trace = &scratch->trace;
	packet = &scratch->packet;
	if (options.packet.dsr != DSR_IPIP && packet->hop_limit <= 1) {
		/* tc replies with "time exceeded" for IPv6. */
		if (AF == 6)
			return AF_FN(pass_to_tc)(ctx, scratch);
		trace->file = METRIC_FILE_NODEPORT;
		trace->direction = METRIC_EGRESS;
		return FAIL(trace, DROP_TTL);
	}
	length = AF_FN(dsr_needs_option)(scratch) ? AF_FN(dsr_length)(ctx, packet) : 0;
	found = AF_FN(find_next_hop)(ctx, &scratch->next_hop, packet->saddr, packet->daddr, length);
	if (found)
		return AF_FN(no_route)(ctx, scratch, found);
	trace->file = METRIC_FILE_NODEPORT;
	trace->direction = METRIC_EGRESS;
	if (AF_FN(dsr_needs_option)(scratch)) {
		error = AF_FN(dsr_dispatch)(ctx, scratch);
		if (error)
			return FAIL(trace, error);
	}
	return AF_FN(forward_packet)(ctx, scratch);
}

/* A request to a service. Returns a verdict. */
GLOBAL int AF_FN(nodeport_request)(CTX *ctx, scratch_t *scratch)
{
	packet_t *packet;
	const struct lxc_value *local;
	struct trace_ctx *trace;
	int error, tunnelled;
	long found;

	scratch = OWN_SCRATCH(scratch);
	if (!scratch)
		return -DROP_INVALID;
	trace = &scratch->trace;
	packet = &scratch->packet;
	if (packet->ct_error)
		return FAIL(trace, packet->ct_error);
	scratch->inner = *packet;
	__builtin_memset(&scratch->translation, 0, sizeof(scratch->translation));
	error = AF_FN(translate)(ctx, scratch);
	AF_FN(counted_by)(scratch, COUNTED_SERVICE);
	/* tc sends the ICMP error. */
	if (error == DROP_NO_SERVICE || error == REFUSE)
		return AF_FN(pass_to_tc)(ctx, scratch);
	if (error)
		return FAIL(trace, error);
	local = AF_FN(lxc_lookup)(packet->daddr);
	if (dsr_forwards(&scratch->service) && !local && !AF_FN(keeps_source)(scratch)) {
		AF_FN(learn_neighbour)(ctx, packet);
		return AF_FN(dsr_request)(ctx, scratch);
	}
	error = AF_FN(nodeport_track)(ctx, scratch);
	if (error)
		return FAIL(trace, error);
	if (local)
		return XDP_DONE;
	AF_FN(counted_by)(scratch, COUNTED_SERVICE | COUNTED_REQUEST);
	AF_FN(learn_neighbour)(ctx, packet);
	tunnelled = AF_FN(is_tunnelled_peer)(ctx, scratch);
	AF_COPY(scratch->target.address, AF_OPTION(nodeport_source));
	/* tc replies with "time exceeded" for IPv6. */
	if (tunnelled && packet->hop_limit <= 1)
		return AF_FN(pass_to_tc)(ctx, scratch);
	/* The reply comes by the tunnel as well. */
	if (tunnelled)
		AF_COPY(scratch->target.address, packet_options()->AF_FN(router));
	scratch->target.needs_ct = 0;
	if (packet->hop_limit > 1 && !tunnelled) {
		found = AF_FN(find_next_hop)(ctx, &scratch->next_hop, scratch->target.address,
					     packet->daddr, l3_length(ctx));
		if (found)
			return AF_FN(no_route)(ctx, scratch, found);
	}
	trace->file = METRIC_FILE_NODEPORT;
	trace->direction = METRIC_EGRESS;
	if (packet->hop_limit <= 1)
		return FAIL(trace, DROP_TTL);
	error = AF_FN(nat_egress)(ctx, scratch);
	if (error)
		return FAIL(trace, error);
	if (tunnelled)
		return AF_FN(send_by_tunnel)(ctx, scratch, IDENTITY_WORLD);
	return AF_FN(forward_packet)(ctx, scratch);
}

/* A packet that may be a reply of a service. Returns a verdict. */
GLOBAL int AF_FN(nodeport_reply)(CTX *ctx, scratch_t *scratch)
{
	const nat_entry_t *nat;
	const struct ct_entry *entry;
	packet_t *packet;
	struct trace_ctx *trace;
	long found;
	int error;

	scratch = OWN_SCRATCH(scratch);
	if (!scratch)
		return -DROP_INVALID;
	trace = &scratch->trace;
	packet = &scratch->packet;
	nat = AF_FN(nat_find_reverse)(scratch);
	/* Local destinations are left to tc. */
	if (!nat || nat->needs_ct)
		return XDP_DONE;
#if AF == 6
	/* tc translates it to IPv4. */
	if (options.packet.nat46x64 && is_embedded(nat->address))
		return XDP_PASS;
#endif
	scratch->inner = *packet;
	AF_COPY(packet->daddr, nat->address);
	packet->dport = nat->port;
	entry = AF_FN(nodeport_flow)(ctx, scratch);
	AF_COPY(packet->daddr, scratch->inner.daddr);
	packet->dport = scratch->inner.dport;
	if (!entry) {
		flow_note_untranslated();
		return XDP_DONE;
	}
	AF_FN(counted_by)(scratch, COUNTED_ANSWER);
	error = AF_FN(nat_reverse_translate)(ctx, scratch, nat);
	if (!error)
		error = AF_FN(reverse_translate)(ctx, scratch, entry);
	if (error)
		return FAIL(trace, error);
	if (AF_FN(is_tunnelled_peer)(ctx, scratch))
		return AF_FN(send_by_tunnel)(ctx, scratch, IDENTITY_REMOTE_NODE);
	found = AF_FN(find_next_hop)(ctx, &scratch->next_hop, packet->saddr, packet->daddr,
				     l3_length(ctx));
	if (found)
		return AF_FN(no_route)(ctx, scratch, found);
	trace->file = METRIC_FILE_NODEPORT;
	trace->direction = METRIC_EGRESS;
	return AF_FN(forward_packet)(ctx, scratch);
}

/* A packet received by a device. Returns a verdict. */
GLOBAL int AF_FN(from_wire)(CTX *ctx, scratch_t *scratch)
{
	packet_t *packet;
	const struct lb_service *svc;
	const struct lxc_value *local;
	struct trace_ctx *trace;
	int unknown_port = 0, known;
	__u8 broken;

	scratch = OWN_SCRATCH(scratch);
	if (!scratch)
		return -DROP_INVALID;
	trace = &scratch->trace;
	packet = &scratch->packet;
	broken = AF_FN(parse)(ctx, packet);
	if (broken && !packet_bytes(ctx, L3, sizeof(ip_t)))
		return FAIL(trace, DROP_INVALID);
	if (broken)
		return FAIL(trace, broken);
	if (!has_ports(packet->proto))
		return XDP_DONE;
	if (packet->error)
		return FAIL(trace, packet->error);
	local = AF_FN(lxc_lookup)(packet->daddr);
	if (local && !(local->flags & LXC_HOST))
		return XDP_DONE;
	known = local != NULL;
	OPAQUE(known);
	__builtin_memset(&scratch->key, 0, sizeof(scratch->key));
	svc = DEBUGS(trace) ? AF_FN(debug_outside)(ctx, scratch, known, &unknown_port)
			    : AF_FN(outside_service)(scratch, known, &unknown_port);
	if (unknown_port)
		return FAIL(trace, DROP_NO_SERVICE);
	if (svc) {
		if (!AF_FN(in_source_range)(packet, svc))
			return FAIL(trace, DROP_SOURCE_RANGE);
		if (!(svc->flags & LB_ROUTABLE))
			return FAIL(trace, DROP_IS_CLUSTER_IP);
		if (is_for_tc(svc))
			return XDP_PASS;
		scratch->service = *svc;
		return AF_FN(nodeport_request)(ctx, scratch);
	}
	return packet->ct_error ? XDP_DONE : AF_FN(nodeport_reply)(ctx, scratch);
}
