/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Services for clients outside at XDP, of one address family. */

/* Remembers that these entries have counted the packet, or that none has. */
static __always_inline void AF_FN(counted_by)(struct AF_FN(work) * work, __u8 entries)
{
	if (options.packet.ct_accounting)
		work->counted = entries;
}

/* The tc program counts the packet: its entries forget it. The packet has its source again, and
 * still the destination that it got here.
 */
static __noinline void AF_FN(uncount)(CTX *ctx, struct AF_FN(work) * work)
{
	struct AF_FN(ct_key) *flow = &work->flow;
	struct ct_entry *entry = NULL;

	if (work->counted & COUNTED_SERVICE) {
		AF_FN(ct_service)(&work->inner, flow);
		entry = AF_FN(ct_find)(flow);
		if (entry && entry->rev_nat_index == work->service.rev_nat_index &&
		    !ct_is_expired(entry, work->path.now))
			ct_uncount(ctx, entry);
	}
	if (work->counted & COUNTED_REQUEST)
		AF_FN(ct_forward)(&work->packet, flow, CT_EGRESS);
	else if (work->counted & COUNTED_ANSWER)
		AF_FN(ct_reverse)(&work->packet, flow, CT_INGRESS);
	else
		return;
	entry = AF_FN(ct_find)(flow);
	if (entry)
		ct_uncount(ctx, entry);
}

/* The way may be known to the kernel alone, or after it asked for a neighbour: the packet goes on
 * as it came, and the tc program does what would have been done here.
 */
static __noinline int AF_FN(leave_to_tc)(CTX *ctx, struct AF_FN(work) * work)
{
	const struct AF_FN(packet) *came = &work->inner;
	struct AF_FN(packet) *packet = &work->packet;
	struct path *path = &work->path;

	if (AF_FN(rewrite)(ctx, packet, SOURCE, came->saddr, came->sport))
		return FAIL(path, DROP_WRITE);
	if (options.packet.ct_accounting)
		AF_FN(uncount)(ctx, work);
	if (AF_FN(rewrite)(ctx, packet, DESTINATION, came->daddr, came->dport))
		return FAIL(path, DROP_WRITE);
	return XDP_PASS;
}

/* The packet goes to the node that its destination is on, by the tunnel. */
static __always_inline int AF_FN(goes_by_tunnel)(CTX *ctx, struct AF_FN(work) * work)
{
	if (!options.packet.tunnel)
		return 0;
	AF_FN(find_peer)(ctx, work, work->packet.daddr);
	return is_tunnelled(&work->peer);
}

/* What becomes of a packet that has no way to go; `found` as of `AF_FN(find_way)`. */
static __always_inline int AF_FN(no_way)(CTX *ctx, struct AF_FN(work) * work, long found)
{
	/* The tc program also tells the sender that the packet is too large. */
	if (found == BPF_FIB_LKUP_RET_NOT_FWDED || found == BPF_FIB_LKUP_RET_NO_NEIGH ||
	    found == BPF_FIB_LKUP_RET_FRAG_NEEDED)
		return AF_FN(leave_to_tc)(ctx, work);
	work->path.file = METRIC_FILE_NODEPORT;
	work->path.direction = METRIC_EGRESS;
	work->path.extended_error = found;
	return FAIL(&work->path, DROP_NO_FIB);
}

/* Sends the packet the way that was found. Returns a verdict, or less: a drop reason. */
static __always_inline int AF_FN(send_on)(CTX *ctx, struct AF_FN(work) * work)
{
	__u8 error = AF_FN(take_hop)(ctx, &work->packet);

	return error ? FAIL(&work->path, error) : go(ctx, &work->path, &work->way);
}

/* Sends the packet by the tunnel, with this identity. Returns as `AF_FN(from_wire)`. */
GLOBAL int AF_FN(send_by_tunnel)(CTX *ctx, struct AF_FN(work) * work, __u32 identity)
{
	const struct AF_FN(packet) * came;
	const struct AF_FN(ip) * ip;
	struct path *path;
	__u32 hash, length = packet_length(ctx) - L3 + VXLAN_ROOM;
	__u8 ecn, error;
	__be32 node;
	long found;

	work = OWN_WORK(work);
	if (!work || !options.packet.tunnel)
		return -DROP_INVALID;
	path = &work->path;
	came = &work->inner;
	node = work->peer.endpoint[0];
	if (!writes_vxlan(&work->peer) || length > 0xffff)
		return AF_FN(leave_to_tc)(ctx, work);
	found = find_way4(ctx, &work->way, options.packet.nodeport_source4, node, length);
	if (found)
		return AF_FN(no_way)(ctx, work, found);
	path->file = METRIC_FILE_NODEPORT;
	path->direction = METRIC_EGRESS;
	error = AF_FN(take_hop)(ctx, &work->packet);
	if (error)
		return FAIL(path, error);
	ip = packet_bytes(ctx, L3, sizeof(*ip));
	if (!ip)
		return FAIL(path, DROP_WRITE);
	ecn = (AF == 4 ? ((const __u8 *)ip)[1] : bpf_ntohl(*(const __be32 *)ip) >> 20) & 3;
	hash = AF_FN(packet_hash)(came->saddr, came->sport, came->dport, came->proto, 0);
	error = vxlan_encapsulate(ctx, node, identity, hash, ecn);
	if (error)
		return FAIL(path, error);
	COUNT_PACKET(ctx, REASON_FORWARDED, METRIC_EGRESS, METRIC_FILE_ENCAP);
	trace_packet(ctx, path, TRACE_TO_OVERLAY, options.packet.tunnel_device, NULL);
	return go(ctx, path, &work->way);
}

/* A packet for a backend on another node, which answers the client itself. Returns as
 * `AF_FN(from_wire)`.
 */
GLOBAL int AF_FN(dsr_request)(CTX *ctx, struct AF_FN(work) * work)
{
	struct AF_FN(packet) * packet;
	struct path *path;
	__u16 length;
	int error;
	long found;

	/* Kernels before 6.8 verify this where nothing calls it. */
	work = OWN_WORK(work);
	if (!work || options.packet.dsr == DSR_NONE)
		return -DROP_INVALID;
	path = &work->path;
	packet = &work->packet;
	if (options.packet.dsr != DSR_IPIP && packet->hop_limit <= 1) {
		/* IPv6 tells the client, which the tc program does. */
		if (AF == 6)
			return AF_FN(leave_to_tc)(ctx, work);
		path->file = METRIC_FILE_NODEPORT;
		path->direction = METRIC_EGRESS;
		return FAIL(path, DROP_TTL);
	}
	length = AF_FN(dsr_tells)(work) ? AF_FN(dsr_length)(ctx, packet) : 0;
	found = AF_FN(find_way)(ctx, &work->way, packet->saddr, packet->daddr, length);
	if (found)
		return AF_FN(no_way)(ctx, work, found);
	path->file = METRIC_FILE_NODEPORT;
	path->direction = METRIC_EGRESS;
	if (AF_FN(dsr_tells)(work)) {
		error = AF_FN(dsr_dispatch)(ctx, work);
		if (error)
			return FAIL(path, error);
	}
	return AF_FN(send_on)(ctx, work);
}

/* A packet for a service. Returns as `AF_FN(from_wire)`. */
GLOBAL int AF_FN(nodeport_request)(CTX *ctx, struct AF_FN(work) * work)
{
	struct AF_FN(packet) * packet;
	const struct lxc_value *local;
	struct path *path;
	int error, tunnelled;
	long found;

	work = OWN_WORK(work);
	if (!work)
		return -DROP_INVALID;
	path = &work->path;
	packet = &work->packet;
	if (packet->ct_error)
		return FAIL(path, packet->ct_error);
	work->inner = *packet;
	__builtin_memset(&work->translation, 0, sizeof(work->translation));
	error = AF_FN(translate)(ctx, work);
	AF_FN(counted_by)(work, COUNTED_SERVICE);
	/* The tc program tells the client. */
	if (error == DROP_NO_SERVICE || error == REFUSE)
		return AF_FN(leave_to_tc)(ctx, work);
	if (error)
		return FAIL(path, error);
	local = AF_FN(lxc_lookup)(packet->daddr);
	if (dsr_forwards(&work->service) && !local && !AF_FN(keeps_source)(work)) {
		AF_FN(learn_neighbour)(ctx, packet);
		return AF_FN(dsr_request)(ctx, work);
	}
	error = AF_FN(nodeport_track)(ctx, work);
	if (error)
		return FAIL(path, error);
	if (local)
		return XDP_DONE;
	AF_FN(counted_by)(work, COUNTED_SERVICE | COUNTED_REQUEST);
	AF_FN(learn_neighbour)(ctx, packet);
	tunnelled = AF_FN(goes_by_tunnel)(ctx, work);
#if AF == 4
	work->target.address = options.packet.nodeport_source4;
#else
	copy6(work->target.address, packet_options()->nodeport_source6);
#endif
	/* IPv6 tells the client, which the tc program does. */
	if (tunnelled && packet->hop_limit <= 1)
		return AF_FN(leave_to_tc)(ctx, work);
	/* The answer comes by the tunnel, too. */
	if (tunnelled)
		AF_COPY(work->target.address, packet_options()->AF_FN(router));
	work->target.needs_ct = 0;
	if (packet->hop_limit > 1 && !tunnelled) {
		found = AF_FN(find_way)(ctx, &work->way, work->target.address, packet->daddr,
					l3_length(ctx));
		if (found)
			return AF_FN(no_way)(ctx, work, found);
	}
	path->file = METRIC_FILE_NODEPORT;
	path->direction = METRIC_EGRESS;
	if (packet->hop_limit <= 1)
		return FAIL(path, DROP_TTL);
	error = AF_FN(nat_egress)(ctx, work);
	if (error)
		return FAIL(path, error);
	if (tunnelled)
		return AF_FN(send_by_tunnel)(ctx, work, IDENTITY_WORLD);
	return AF_FN(send_on)(ctx, work);
}

/* A packet that may answer one to a service. Returns as `AF_FN(from_wire)`. */
GLOBAL int AF_FN(nodeport_reply)(CTX *ctx, struct AF_FN(work) * work)
{
	const struct AF_FN(nat_entry) * nat;
	const struct ct_entry *entry;
	struct AF_FN(packet) * packet;
	struct path *path;
	long found;
	int error;

	work = OWN_WORK(work);
	if (!work)
		return -DROP_INVALID;
	path = &work->path;
	packet = &work->packet;
	nat = AF_FN(nat_answered)(work);
	/* Pods and processes of the node have what they need in the tc program. */
	if (!nat || nat->needs_ct)
		return XDP_DONE;
#if AF == 6
	/* The tc program makes it a packet of IPv4. */
	if (options.packet.nat46x64 && is_embedded(nat->address))
		return XDP_PASS;
#endif
	work->inner = *packet;
	AF_COPY(packet->daddr, nat->address);
	packet->dport = nat->port;
	entry = AF_FN(nodeport_flow)(ctx, work);
	AF_COPY(packet->daddr, work->inner.daddr);
	packet->dport = work->inner.dport;
	if (!entry)
		return XDP_DONE;
	AF_FN(counted_by)(work, COUNTED_ANSWER);
	error = AF_FN(nat_give_back)(ctx, work, nat);
	if (!error)
		error = AF_FN(translate_back)(ctx, work, entry);
	if (error)
		return FAIL(path, error);
	if (AF_FN(goes_by_tunnel)(ctx, work))
		return AF_FN(send_by_tunnel)(ctx, work, IDENTITY_REMOTE_NODE);
	found = AF_FN(find_way)(ctx, &work->way, packet->saddr, packet->daddr, l3_length(ctx));
	if (found)
		return AF_FN(no_way)(ctx, work, found);
	path->file = METRIC_FILE_NODEPORT;
	path->direction = METRIC_EGRESS;
	return AF_FN(send_on)(ctx, work);
}

/* A packet that an interface of the node received. Returns a verdict, or less: a drop reason. */
GLOBAL int AF_FN(from_wire)(CTX *ctx, struct AF_FN(work) * work)
{
	struct AF_FN(packet) * packet;
	const struct lb_service *svc;
	const struct lxc_value *local;
	struct path *path;
	int unknown_port = 0, known;
	__u8 broken;

	work = OWN_WORK(work);
	if (!work)
		return -DROP_INVALID;
	path = &work->path;
	packet = &work->packet;
	broken = AF_FN(parse)(ctx, packet);
	if (broken && !packet_bytes(ctx, L3, sizeof(struct AF_FN(ip))))
		return FAIL(path, DROP_INVALID);
	if (broken)
		return FAIL(path, broken);
	if (!has_ports(packet->proto))
		return XDP_DONE;
	if (packet->error)
		return FAIL(path, packet->error);
	local = AF_FN(lxc_lookup)(packet->daddr);
	if (local && !(local->flags & LXC_HOST))
		return XDP_DONE;
	known = local != NULL;
	OPAQUE(known);
	__builtin_memset(&work->key, 0, sizeof(work->key));
	svc = DEBUGS() ? AF_FN(debug_outside)(ctx, work, known, &unknown_port)
		       : AF_FN(outside_service)(work, known, &unknown_port);
	if (unknown_port)
		return FAIL(path, DROP_NO_SERVICE);
	if (svc) {
		if (!AF_FN(in_source_range)(packet, svc))
			return FAIL(path, DROP_SOURCE_RANGE);
		if (!(svc->flags & LB_ROUTABLE))
			return FAIL(path, DROP_IS_CLUSTER_IP);
		if (is_for_tc(svc))
			return XDP_PASS;
		work->service = *svc;
		return AF_FN(nodeport_request)(ctx, work);
	}
	return packet->ct_error ? XDP_DONE : AF_FN(nodeport_reply)(ctx, work);
}
