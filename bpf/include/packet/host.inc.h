/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Ways of packets of one address family at interfaces of the node. */

/* A packet for a service that exceeds the MTU of the way to the backend: the client gets an error
 * about it as it sent it. Returns as `AF_FN(nodeport)`.
 */
GLOBAL int AF_FN(request_too_large)(CTX *ctx, struct AF_FN(work) * work)
{
	int error;

	work = OWN_WORK(work);
	if (!work)
		return -DROP_INVALID;
	error = AF_FN(rewrite)(ctx, &work->packet, SOURCE, work->forward.saddr,
			       work->forward.sport);
	if (!error)
		error = AF_FN(untranslate)(ctx, work);
	return error ? FAIL(&work->path, error)
		     : AF_FN(tell_mtu)(ctx, &work->packet, &work->path, work->mtu);
}

/* Makes an answer to a translated packet what it was when it came. Returns a drop reason, or 0. */
static __always_inline int AF_FN(answer_as_sent)(CTX *ctx, struct AF_FN(work) * work)
{
	const struct AF_FN(nat_key) *sent = &work->answers;
	int error = AF_FN(rewrite)(ctx, &work->packet, SOURCE, sent->saddr, sent->sport);

	if (error)
		return error;
	return AF_FN(rewrite)(ctx, &work->packet, DESTINATION, sent->daddr, sent->dport);
}

/* The same of an answer on its way to the client: the backend gets the error. */
GLOBAL int AF_FN(answer_too_large)(CTX *ctx, struct AF_FN(work) * work)
{
	int error;

	work = OWN_WORK(work);
	if (!work)
		return -DROP_INVALID;
	error = AF_FN(answer_as_sent)(ctx, work);
	return error ? FAIL(&work->path, error)
		     : AF_FN(tell_mtu)(ctx, &work->packet, &work->path, work->mtu);
}

#if AF == 6
/* The same of one that is out of hops. */
GLOBAL int answer_out_of_hops(CTX *ctx, struct work6 *work)
{
	int error;

	work = OWN_WORK(work);
	if (!work)
		return -DROP_INVALID;
	error = answer_as_sent6(ctx, work);
	return error ? FAIL(&work->path, error) : out_of_hops6(ctx, &work->packet, &work->path);
}
#endif

/* To a backend on another node: the answer must come back here. */
static __always_inline int AF_FN(nodeport_remote)(CTX *ctx, struct AF_FN(work) * work)
{
	struct path *path = &work->path;
	int error, tunnelled = 0;

#if AF == 4
	work->target.address = options.packet.nodeport_source4;
#else
	copy6(work->target.address, packet_options()->nodeport_source6);
#endif
	if (options.packet.tunnel) {
		AF_FN(find_peer)(ctx, work, work->packet.daddr);
		tunnelled = is_tunnelled(&work->peer);
	}
	/* The answer comes by the tunnel, too. */
	if (tunnelled)
		AF_COPY(work->target.address, packet_options()->AF_FN(router));
	work->target.needs_ct = 0;
	path->file = METRIC_FILE_NODEPORT;
	path->direction = METRIC_EGRESS;
	if (work->packet.hop_limit <= 1)
		return AF_FN(request_out_of_hops)(ctx, work);
	error = AF_FN(nat_egress)(ctx, work);
	if (error)
		return FAIL(path, error);
	mark_snat_done(ctx);
	if (!tunnelled) {
		error = AF_FN(route)(ctx, work, 1);
		return error == -DROP_TOO_LARGE ? AF_FN(request_too_large)(ctx, work) : error;
	}
	error = AF_FN(hop)(ctx, &work->packet, &work->path);
	if (error)
		return error;
	return encapsulate(ctx, path, &work->peer, IDENTITY_WORLD);
}

/* Hands a packet from outside to a pod of this node; with legacy routing the kernel does, by its
 * routes, unless the packet came by the tunnel. Returns a verdict, or less: a drop reason;
 * TC_ACT_PIPE leaves the packet to the kernel.
 */
static __always_inline int AF_FN(hand_over)(CTX *ctx, struct AF_FN(work) * work,
					    const struct lxc_value *receiver, enum delivery how)
{
	if (!options.packet.legacy_routing || FROM_TUNNEL)
		return AF_FN(deliver)(ctx, work, receiver, how);
	if (how == FROM_NETWORK && !work->translated_back && !work->packet.related &&
	    !work->packet.ct_error)
		AF_FN(forget_nodeport)(work);
	return TC_ACT_PIPE;
}

/* A packet for a service. Returns as `AF_FN(from_network)`. */
GLOBAL int AF_FN(nodeport)(CTX *ctx, struct AF_FN(work) * work)
{
	struct AF_FN(packet) * packet;
	const struct lxc_value *local;
	struct path *path;
	int error;

	work = OWN_WORK(work);
	if (!work)
		return -DROP_INVALID;
	path = &work->path;
	packet = &work->packet;
	if (!AF_FN(in_source_range)(packet, &work->service))
		return FAIL(path, DROP_SOURCE_RANGE);
	if (!(work->service.flags & LB_ROUTABLE))
		return FAIL(path, DROP_IS_CLUSTER_IP);
	__builtin_memset(&work->translation, 0, sizeof(work->translation));
	if (options.packet.ipip_termination && work->is_unpacked) {
		error = AF_FN(choose_unpacked)(work);
		if (error)
			return FAIL(path, error);
	}
	error = AF_FN(translate)(ctx, work);
	if (error == REFUSE)
		return AF_FN(refuse)(ctx, work);
	if (error == DROP_NO_SERVICE && options.packet.reply_no_backend)
		return AF_FN(reply_error)(ctx, packet, AF_FN(NO_BACKEND), ctx->len);
	if (error)
		return FAIL(path, error);
	if (packet->ct_error)
		return FAIL(path, packet->ct_error);
	local = AF_FN(lxc_lookup)(packet->daddr);
	if (dsr_forwards(&work->service) && !local && !AF_FN(keeps_source)(work)) {
		AF_FN(learn_neighbour)(ctx, packet);
		return AF_FN(dsr_request)(ctx, work);
	}
	error = AF_FN(nodeport_track)(ctx, work);
	if (error)
		return FAIL(path, error);
#if AF == 6
	if (options.packet.nat46x64 && is_embedded(packet->daddr)) {
		if (packet->hop_limit <= 1)
			return request_out_of_hops6(ctx, work);
		return nat64_request(ctx, work);
	}
#endif
	if (local && !(local->flags & (LXC_HOST | LXC_AT_HOST_NS))) {
		/* Only a policy here asks who the client is. */
		if (!FROM_TUNNEL)
			path->source_identity = AF_FN(identity_of)(packet->saddr);
		if (packet->hop_limit <= 1)
			return AF_FN(request_out_of_hops)(ctx, work);
		return AF_FN(hand_over)(ctx, work, local, FROM_SERVICE);
	}
	if (local)
		return TC_ACT_OK;
	if (!FROM_TUNNEL)
		AF_FN(learn_neighbour)(ctx, packet);
	path->source_identity = 0;
	return AF_FN(nodeport_remote)(ctx, work);
}

/* Sends an answer on to a client, or to another node with this identity. Returns as
 * `AF_FN(from_network)`.
 */
static __always_inline int AF_FN(send_answer)(CTX *ctx, struct AF_FN(work) * work, __u32 identity)
{
	int error;

	if (options.packet.tunnel) {
		AF_FN(find_peer)(ctx, work, work->packet.daddr);
		if (is_tunnelled(&work->peer)) {
			error = AF_FN(hop)(ctx, &work->packet, &work->path);
			if (error)
				return error;
			return encapsulate(ctx, &work->path, &work->peer, identity);
		}
	}
	error = AF_FN(route)(ctx, work, 1);
	/* The kernel has a way where there is none here. */
	return error ? error : TC_ACT_PIPE;
}

/* An ICMP error about a packet of a service to a client: it goes to the backend, as if it were
 * about the packet as that sent it. Returns as `AF_FN(nodeport_answer)`.
 */
GLOBAL int AF_FN(error_to_backend)(CTX *ctx, struct AF_FN(work) * work)
{
	const struct AF_JOIN(lb, _backend) * backend;
	const struct AF_FN(nat_entry) * nat;
	struct AF_FN(packet) * inner;
	struct ct_entry *entry;
	__u32 backend_id;
	__be16 port, client_port;
	int error;

	work = OWN_WORK(work);
	if (!work)
		return -DROP_INVALID;
	inner = &work->inner;
	if (!AF_FN(parse_inner)(ctx, &work->packet, inner) || !has_ports(inner->proto))
		return 0;
	AF_FN(ct_forward)(inner, &work->flow, CT_SERVICE);
	entry = AF_FN(ct_find)(&work->flow);
	if (!entry)
		return 0;
	backend_id = *ct_backend(entry);
	backend = bpf_map_lookup_elem(&BACKENDS, &backend_id);
	if (!backend)
		return 0;
	port = backend->port ? backend->port : inner->sport;
	/* The backend knows the client by the source that this node gave it, if it did. */
	client_port = entry->nat_port ? entry->nat_port : inner->dport;
	AF_COPY(work->forward.daddr, backend->address);
	AF_COPY(work->forward.saddr, inner->daddr);
	work->forward.dport = port;
	work->forward.sport = client_port;
	work->forward.proto = inner->proto;
	work->forward.flags = NAT_FORWARD;
	nat = bpf_map_lookup_elem(&NAT, &work->forward);
	error = 0;
	if (nat)
		error = AF_FN(rewrite_inner)(ctx, work, DESTINATION, nat->address, nat->port);
	else if (entry->nat_port)
		error = AF_FN(rewrite_inner)(ctx, work, DESTINATION, inner->daddr, client_port);
	if (!error)
		error = AF_FN(rewrite_inner)(ctx, work, SOURCE, backend->address, port);
	if (!error)
		error = AF_FN(rewrite_address)(ctx, &work->packet, DESTINATION, backend->address);
	if (error)
		return FAIL(&work->path, error);
	/* The caller delivers it. */
	if (AF_FN(lxc_lookup)(work->packet.daddr))
		return 0;
	mark_snat_done(ctx);
	return AF_FN(send_answer)(ctx, work, IDENTITY_WORLD);
}

/* Answers to packets whose source this node translated. Returns 0 if there is more to do, else as
 * `AF_FN(from_network)`.
 */
GLOBAL int AF_FN(nodeport_answer)(CTX *ctx, struct AF_FN(work) * work)
{
	const struct ct_entry *entry;
	struct path *path;
	__u8 failed;
	int error;

	work = OWN_WORK(work);
	if (!work)
		return -DROP_INVALID;
	path = &work->path;
	error = AF_FN(nat_ingress)(ctx, work);
#if AF == 4
	if (error == NAT_NONE && options.packet.nat46x64 && answers_nat64(ctx, work))
		return nat46(ctx, work, GOES_ON_AS_6);
#endif
	if (error == NAT_NONE)
		return work->packet.related ? AF_FN(error_to_backend)(ctx, work) : 0;
	if (error)
		return FAIL(path, error);
	work->translated_back = 1;
	mark_snat_done(ctx);
	if (work->packet.related) {
		error = AF_FN(translate_error)(ctx, work, 0);
		if (error)
			return FAIL(path, error);
	} else {
		entry = AF_FN(nodeport_flow)(ctx, work);
		if (!entry)
			return 0;
		failed = AF_FN(translate_back)(ctx, work, entry);
		if (failed)
			return FAIL(path, failed);
	}
#if AF == 6
	if (options.packet.nat46x64 && is_embedded(work->packet.daddr))
		return nat64(ctx, work);
#endif
	/* Routes of the kernel are for routers' errors; it takes no packet from an address of the
	 * node, which the service's may be.
	 */
	if (work->packet.related &&
	    (!work->names_service || !AF_SAME(work->packet.saddr, work->inner.daddr)))
		return 0;
#if AF == 6
	if (work->packet.hop_limit <= 1)
		return answer_out_of_hops(ctx, work);
#endif
	error = AF_FN(send_answer)(ctx, work, IDENTITY_REMOTE_NODE);
	return error == -DROP_TOO_LARGE && !work->packet.related
		       ? AF_FN(answer_too_large)(ctx, work)
		       : error;
}

/* Tells that a packet came, if such events are wanted: it costs a look at what the sender is. */
static __always_inline void AF_FN(trace_from_network)(CTX *ctx, struct path *path)
{
	const struct AF_FN(ip) * ip;

	if (!traces_arrivals())
		return;
	ip = packet_bytes(ctx, L3, sizeof(*ip));
	if (ip)
		path->source_identity = AF_FN(identity_of)(ip->source);
	trace_packet(ctx, path, TRACE_FROM_NETWORK, ctx->ifindex, NULL);
}

/* A packet for the node, or for nobody here: a service, or an answer. Returns 0 if it is neither,
 * else as `AF_FN(from_network)`.
 */
static __always_inline int AF_FN(from_network_node)(CTX *ctx, struct AF_FN(work) * work, int known)
{
	const struct AF_FN(packet) *packet = &work->packet;
	const struct lb_service *svc;
	int unknown_port = 0, error;

	OPAQUE(known);
	if (has_ports(packet->proto) && options.nodeport &&
	    (!(xdp_metadata(ctx) & METADATA_NO_SERVICE) ||
	     (options.packet.ipip_termination && work->is_unpacked))) {
		__builtin_memset(&work->key, 0, sizeof(work->key));
		svc = DEBUGS() ? AF_FN(debug_outside)(ctx, work, known, &unknown_port)
			       : AF_FN(outside_service)(work, known, &unknown_port);
		if (unknown_port)
			return FAIL(&work->path, DROP_NO_SERVICE);
		if (svc && !lb_is_l7(svc) && has_usable_backends(svc) &&
		    !lb_delegates_if_local(svc)) {
			work->service = *svc;
#if AF == 4
			if (work->service.flags2 & LB2_NAT46X64)
				return nat46_request(ctx, work);
#endif
			return AF_FN(nodeport)(ctx, work);
		}
	}
	if (options.packet.ipip_termination && work->is_unpacked)
		return FAIL(&work->path, DROP_NO_SERVICE);
	if (packet->ct_error)
		return 0;
	if (options.packet.dsr == DSR_OPTION && known && has_ports(packet->proto)) {
		error = AF_FN(dsr_receive)(ctx, work);
		if (error)
			return error;
	}
	return AF_FN(nodeport_answer)(ctx, work);
}

/* A packet that an interface of the node received. Returns a verdict, or less: a drop reason. */
GLOBAL int AF_FN(from_network)(CTX *ctx, struct AF_FN(work) * work)
{
	struct AF_FN(packet) * packet;
	const struct lxc_value *local;
	struct path *path;
	AF_ADDRESS(source);
	int error = 0;
	__u8 broken;

	work = OWN_WORK(work);
	if (!work)
		return -DROP_INVALID;
	path = &work->path;
	packet = &work->packet;
	broken = AF_FN(read_packet)(ctx, work);
	if (broken) {
		path->source_identity = AF_FN(identity_of)(packet->saddr);
		return FAIL(path, broken);
	}
#if AF == 6
	if (packet->proto == IPPROTO_ICMPV6 && packet->icmp_type == ICMP6_SOLICITATION)
		return answer_solicitation(ctx, packet, work->device.mac, path, 0);
#endif
	path->source_identity = 0;
	work->translated_back = 0;
	AF_COPY(source, packet->saddr);
	local = AF_FN(lxc_lookup)(packet->daddr);
	if (has_ports(packet->proto) && packet->error)
		error = FAIL(path, packet->error);
	else if (!local || (local->flags & LXC_HOST))
		error = AF_FN(from_network_node)(ctx, work, local != NULL);
	else if (options.packet.dsr == DSR_OPTION && has_ports(packet->proto) && !packet->ct_error)
		error = AF_FN(dsr_receive)(ctx, work);
	if (error) {
		/* What it is matters only if it is dropped. */
		if (error < 0 && !path->source_identity && path->file == METRIC_FILE_HOST)
			path->source_identity = AF_FN(identity_of)(source);
		return error;
	}
	/* An answer may be for a pod. */
	if (work->translated_back)
		local = AF_FN(lxc_lookup)(packet->daddr);
	if ((options.packet.nat46x64 & NAT46X64_GATEWAY) && !local) {
#if AF == 4
		if (is_beyond_gateway(packet->daddr))
			return nat46(ctx, work, ROUTES_AS_6);
#else
		if (is_embedded(packet->daddr))
			return nat64(ctx, work);
#endif
	}
	if (!local || (local->flags & (LXC_HOST | LXC_AT_HOST_NS)))
		return TC_ACT_OK;
	path->source_identity = AF_FN(identity_of)(packet->saddr);
	return AF_FN(hand_over)(ctx, work, local, FROM_NETWORK);
}

/* The pod's packet answers a flow that came from outside. */
static __always_inline int AF_FN(is_answer)(struct AF_FN(work) * work)
{
	const struct ct_entry *entry;

	AF_FN(ct_reverse)(&work->packet, &work->flow, CT_EGRESS);
	entry = AF_FN(ct_find)(&work->flow);
	return entry && !ct_is_expired(entry, work->path.now);
}

/* The destination is reached without masquerade. */
static __always_inline int AF_FN(in_native_network)(AF_ADDRESS_IN address)
{
#if AF == 4
	__u8 bits = options.packet.native4_bits;

	return bits && !((address ^ options.packet.native4) & bpf_htonl(~0U << ((32 - bits) & 31)));
#else
	__u32 bits = options.packet.native6_bits, mask;
	int n;

	if (!bits)
		return 0;
	for (n = 0; n < 4; n++) {
		mask = bits >= 32U * (n + 1) ? ~0U
		       : bits > 32U * n	     ? ~0U << (32 - (bits - 32 * n))
					     : 0;
		if ((address[n] ^ options.packet.native6[n]) & bpf_htonl(mask))
			return 0;
	}
	return 1;
#endif
}

/* Whether the packet gets another source, and which. */
static __always_inline int AF_FN(masquerade_target)(CTX *ctx, struct AF_FN(work) * work)
{
	const struct AF_FN(packet) *packet = &work->packet;
	const struct device *device = &work->device;
	struct AF_FN(nat_target) *target = &work->target;
	const struct lxc_value *sender = AF_FN(lxc_lookup)(packet->saddr);
	const struct ipcache_value *to;

	if ((ctx->mark & MARK_MASK) == MARK_HOST || (sender && (sender->flags & LXC_HOST)) ||
	    AF_SAME(packet->saddr, device->AF_FN(masquerade))) {
		/* Reserves its own port, so that SNAT allocates others. */
		if (packet->proto != ICMP_PROTO && !nat_port_usable(packet->sport))
			return 0;
		AF_COPY(target->address, packet->saddr);
		target->needs_ct = 1;
		return 1;
	}
	if (!sender || (sender->flags & (LXC_AT_HOST_NS | AF_FN(LXC_SKIP_MASQUERADE))) ||
	    AF_FN(in_native_network)(packet->daddr) || AF_FN(is_answer)(work))
		return 0;
	if (options.packet.ip_masq_agent && AF_FN(without_masquerade)(packet->daddr))
		return 0;
	to = AF_FN(ipcache_lookup)(packet->daddr);
	/* Without the tunnel nodes know the way back to pods. */
	if (to && identity_is_node(to->identity) && !options.packet.masquerade_nodes &&
	    (!options.packet.tunnel || (to->flags & IPCACHE_SKIP_TUNNEL)))
		return 0;
	AF_COPY(target->address, device->AF_FN(masquerade));
	target->needs_ct = 0;
	return 1;
}

/* The routes of the node have another interface for the packet than the one that it leaves by. */
static __noinline int AF_FN(leaves_elsewhere)(CTX *ctx, const struct AF_FN(packet) * packet)
{
	struct bpf_fib_lookup fib = {};
	long found;

	AF_FN(ask_routes)(ctx, packet->saddr, packet->daddr, &fib);
	found = bpf_fib_lookup(ctx, &fib, sizeof(fib), fib_flags());
	return (found == BPF_FIB_LKUP_RET_SUCCESS || found == BPF_FIB_LKUP_RET_NO_NEIGH ||
		found == BPF_FIB_LKUP_RET_FRAG_NEEDED) &&
	       fib.ifindex != ctx->ifindex;
}

/* An answer that has the service's address now: the routes may have another interface for that than
 * for the backend's. Returns a verdict, or less: a drop reason; TC_ACT_OK if the packet leaves by
 * the interface that it is at.
 */
GLOBAL int AF_FN(route_answer)(CTX *ctx, struct AF_FN(work) * work)
{
	struct ethernet *ethernet;
	int verdict;

	work = OWN_WORK(work);
	if (!work)
		return -DROP_INVALID;
	if (!AF_FN(leaves_elsewhere)(ctx, &work->packet))
		return TC_ACT_OK;
	verdict = AF_FN(route)(ctx, work, 0);
	if (verdict != -DROP_TOO_LARGE || work->packet.related)
		return verdict;
	/* The backend gets an error about the packet as it sent it, as if it came from outside. */
	verdict = AF_FN(rewrite)(ctx, &work->packet, SOURCE, work->flow.saddr, work->flow.dport);
	if (!verdict)
		verdict = AF_FN(rewrite)(ctx, &work->packet, DESTINATION, work->flow.daddr,
					 work->flow.sport);
	if (verdict)
		return FAIL(&work->path, verdict);
	verdict = AF_FN(tell_mtu)(ctx, &work->packet, &work->path, work->mtu);
	if (verdict != TC_ACT_REDIRECT)
		return verdict;
	ethernet = packet_bytes(ctx, 0, sizeof(*ethernet));
	if (!ethernet)
		return FAIL(&work->path, DROP_WRITE);
	copy_mac(ethernet->destination, work->device.mac);
	return bpf_redirect(ctx->ifindex, BPF_F_INGRESS);
}

/* What goes to a client outside, and answers what that sent to a service or is an error about it,
 * comes from the service. Returns 1 if it is such a packet, 0 if not, or less: a drop reason.
 */
static __always_inline int AF_FN(answer_client)(CTX *ctx, struct AF_FN(work) * work)
{
	struct path *path = &work->path;
	const struct ct_entry *entry;
	__u8 error;

	if (work->packet.related) {
		if (!AF_FN(parse_inner)(ctx, &work->packet, &work->inner))
			return 0;
		error = AF_FN(translate_error)(ctx, work, 1);
		if (error)
			return FAIL(path, error);
		if (work->names_service)
			path->reason = CT_RESULT_RELATED;
		return work->names_service;
	}
	entry = AF_FN(nodeport_flow)(ctx, work);
	if (!entry)
		return 0;
	error = AF_FN(translate_back)(ctx, work, entry);
	return error ? FAIL(path, error) : 1;
}

/* A packet that leaves by an interface of the node. Returns a verdict, or less: a drop reason. */
GLOBAL int AF_FN(to_network)(CTX *ctx, struct AF_FN(work) * work)
{
	struct AF_FN(packet) * packet;
	struct path *path;
	__be32 original[4] = {};
	int error;

	work = OWN_WORK(work);
	if (!work)
		return -DROP_INVALID;
	path = &work->path;
	packet = &work->packet;
	/* Invalid packets of the node itself are not dropped here. */
	if (AF_FN(read_packet)(ctx, work) || packet->ct_error)
		goto out;
	error = AF_FN(answer_client)(ctx, work);
	if (error < 0)
		return error;
	if (error) {
		mark_snat_done(ctx);
#if AF == 6
		if (options.packet.nat46x64 && is_embedded(packet->daddr))
			return nat64(ctx, work);
#endif
		/* The program there counts it. */
		error = AF_FN(route_answer)(ctx, work);
		if (error)
			return error;
		goto out;
	}
	if (!options.packet.AF_FN(masquerade) || !AF_FN(has_translation)(packet->proto) ||
	    !AF_FN(masquerade_target)(ctx, work))
		goto out;
	AF_TO_WORDS(original, packet->saddr);
	if (packet->proto == ICMP_PROTO) {
		switch (packet->icmp_type) {
#if AF == 4
		case ICMP4_ECHO:
			break;
		case ICMP4_ECHO_REPLY:
		case ICMP4_REDIRECT:
			goto out;
		case ICMP4_UNREACHABLE:
		case ICMP4_TIME_EXCEEDED:
#else
		case ICMP6_ECHO:
			break;
		case ICMP6_ECHO_REPLY:
			goto out;
		case ICMP6_UNREACHABLE:
		case ICMP6_TOO_BIG:
		case ICMP6_TIME_EXCEEDED:
#endif
			error = AF_FN(nat_egress_error)(ctx, work);
			if (error)
				return FAIL(path, error);
			goto out;
		default:
			/* The node's own neighbours and routers. */
			if (work->target.needs_ct)
				goto out;
			return FAIL(path, DROP_NAT_PROTOCOL);
		}
	}
	error = AF_FN(nat_egress)(ctx, work);
	if (error)
		return FAIL(path, error);
	mark_snat_done(ctx);
out:
	COUNT_PACKET(ctx, REASON_FORWARDED, METRIC_EGRESS, METRIC_FILE_EGRESS);
	trace_packet(ctx, path, TRACE_TO_NETWORK, ctx->ifindex, original);
	return TC_ACT_OK;
}

/* Who sends what goes from the node into the tunnel: without a mark, the node itself if the packet
 * came by no interface and has its address.
 */
static __always_inline __u32 AF_FN(host_identity)(CTX *ctx, struct AF_FN(work) * work)
{
	__u32 identity = work->path.source_identity;
	const struct lxc_value *sender;

	if (identity != world_identity(options.packet.dual_stack, AF == 6) || ctx->ingress_ifindex)
		return identity;
	sender = AF_FN(lxc_lookup)(work->packet.saddr);
	return sender && (sender->flags & LXC_HOST) ? IDENTITY_HOST : identity;
}

/* Who sent the packet: the mark said, in the path. A reserved identity is only a class of senders,
 * the address may say more. That it is the host's says nothing: packets of others may have its
 * address after masquerade.
 */
static __always_inline void AF_FN(resolve_sender)(struct AF_FN(work) * work)
{
	const struct AF_FN(packet) *packet = &work->packet;
	const struct ipcache_value *known;
	struct path *path = &work->path;

	if (path->source_identity < IDENTITY_FIRST_ALLOCATED) {
#if AF == 6
		if (options.packet.nat46x64 && is_embedded(packet->saddr))
			known = ipcache_lookup4(packet->saddr[3]);
		else
#endif
			known = AF_FN(ipcache_lookup)(packet->saddr);
		if (known && known->identity && known->identity != IDENTITY_HOST)
			path->source_identity = known->identity;
	}
}

/* A packet that the node sends to pods, with this mark. Returns a verdict, or less: a drop reason.
 */
GLOBAL int AF_FN(from_host)(CTX *ctx, struct AF_FN(work) * work, __u32 mark)
{
	struct AF_FN(packet) * packet;
	const struct lxc_value *local;
	struct path *path;
	const struct ipcache_value *to;
	struct ethernet *ethernet;
	__u32 world = world_identity(options.packet.dual_stack, AF == 6);
	__u32 net = options.packet.cilium_net;
	const struct device *device;
	__u8 broken;

	work = OWN_WORK(work);
	if (!work)
		return -DROP_INVALID;
	path = &work->path;
	packet = &work->packet;
	broken = AF_FN(read_packet)(ctx, work);
	if (broken)
		return FAIL(path, broken);
	AF_FN(resolve_sender)(work);
	local = AF_FN(lxc_lookup)(packet->daddr);
	if (local && (local->flags & (LXC_HOST | LXC_AT_HOST_NS)))
		return TC_ACT_OK;
	if (local) {
		/* The kernel sends what comes from outside, too. */
		if (options.packet.legacy_routing)
			path->source_identity = AF_FN(host_identity)(ctx, work);
		return AF_FN(deliver)(ctx, work, local, delivery_from_stack(mark));
	}
	to = AF_FN(ipcache_lookup)(packet->daddr);
	if (options.packet.tunnel) {
		peer_of(&work->peer, to);
		if (is_tunnelled(&work->peer))
			return encapsulate(ctx, path, &work->peer, AF_FN(host_identity)(ctx, work));
	}
	if (!to || to->identity == world || to->identity == IDENTITY_WORLD) {
		if (!is_from_proxy(mark))
			/* It would come back here. */
			return FAIL(path, DROP_UNROUTABLE);
		ctx->mark = MARK_PROXY_TO_WORLD;
		return TC_ACT_OK;
	}
	device = bpf_map_lookup_elem(&skep_devices, &net);
	ethernet = packet_bytes(ctx, 0, sizeof(*ethernet));
	if (device && ethernet)
		copy_mac(ethernet->destination, device->mac);
	return TC_ACT_OK;
}
