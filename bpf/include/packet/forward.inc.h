/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Ways of packets of one address family. */

/* Port that policies see. */
static __always_inline __be16 AF_FN(policy_port)(const struct AF_FN(packet) * packet)
{
	if (packet->proto != ICMP_PROTO)
		return packet->dport;
	return options.packet.icmp_rules ? bpf_htons(packet->icmp_type) : 0;
}

/* Routers say how large packets may be, whatever the policy: connections would hang without. */
static __always_inline int AF_FN(passes_policies)(const struct AF_FN(packet) * packet)
{
	return options.packet.icmp_frag_needed && AF_FN(is_mtu_error)(packet);
}

/* One hop further. Returns 0 to go on, else as `out_of_hops`. */
static __always_inline int AF_FN(hop)(CTX *ctx, struct AF_FN(packet) * packet, struct path *path)
{
	__u8 error = AF_FN(take_hop)(ctx, packet);

	if (error == DROP_TTL)
		return AF_FN(out_of_hops)(ctx, packet, path);
	return error ? FAIL(path, error) : 0;
}

/* A packet to a service, which has a backend's address now, is out of hops: the error is about the
 * packet as it came. Returns as `AF_FN(out_of_hops)`.
 */
static __always_inline int AF_FN(request_out_of_hops)(CTX *ctx, struct AF_FN(work) * work)
{
#if AF == 6
	int error = untranslate6(ctx, work);

	if (error)
		return FAIL(&work->path, error);
#endif
	return AF_FN(out_of_hops)(ctx, &work->packet, &work->path);
}

/* A flow from outside that comes straight to a pod ends what conntrack knows of the same ports
 * through a NodePort: answers to it must not be translated.
 */
static __always_inline void AF_FN(forget_nodeport)(struct AF_FN(work) * work)
{
	const struct AF_FN(packet) *packet = &work->packet;
	const struct ct_entry *entry;

	AF_FN(ct_forward)(packet, &work->flow, CT_EGRESS);
	entry = AF_FN(ct_find)(&work->flow);
	if (!entry || !(entry->flags & CT_NODE_PORT))
		return;
	/* It may be that the XDP program just translated this packet: then the entry is fresh, or
	 * of a connection that goes on.
	 */
	if (options.packet.xdp &&
	    ((packet->proto == IPPROTO_TCP && !tcp_opens(packet->tcp_flags)) ||
	     (!(entry->flags & (CT_CLOSING | CT_SEEN_NON_SYN)) &&
	      entry->last_tx_report + options.packet.ct_report_interval >= work->path.now)))
		return;
	if (work->flow.proto == IPPROTO_TCP)
		bpf_map_delete_elem(&AF_JOIN(cilium_ct, _global), &work->flow);
	else
		bpf_map_delete_elem(&AF_JOIN(cilium_ct_any, _global), &work->flow);
}

static __always_inline void AF_FN(ask)(struct AF_FN(work) * work, __u32 endpoint, __u32 identity,
				       __u8 direction, __u8 open)
{
	struct policy_question *question = &work->question;

	question->endpoint = endpoint;
	question->identity = identity;
	question->direction = direction;
	question->proto = work->packet.proto;
	question->port = AF_FN(policy_port)(&work->packet);
	question->open = open;
	question->cookie = 0;
	question->match = MATCH_NONE;
	question->auth = 0;
}

/* An ICMP error about a packet to a backend, which is `inner`: its sender knows the service only.
 * So do clients outside know the sender of the error, if that is the backend. With `outside`,
 * errors to other senders stay as they are. Returns a drop reason, or 0.
 */
GLOBAL int AF_FN(translate_error)(CTX *ctx, struct AF_FN(work) * work, __u32 outside)
{
	struct AF_JOIN(lb, _reverse_nat) to ALIGNED;
	const struct ct_entry *entry;
	struct AF_FN(packet) * packet, *inner;
	__be16 client_port;
	int error;

	work = OWN_WORK(work);
	if (!work)
		return DROP_INVALID;
	packet = &work->packet;
	inner = &work->inner;
	work->names_service = 0;
	AF_FN(ct_forward)(inner, &work->flow, CT_EGRESS);
	entry = AF_FN(ct_find)(&work->flow);
	if (!entry || !AF_FN(service_of)(entry, &to))
		return 0;
	work->names_service = (entry->flags & by_service()) != 0;
	if (outside && !work->names_service)
		return 0;
	/* To itself, which is where the error goes, or from a port of its own. */
	client_port = AF_FN(ct_client_port)(entry);
	if ((entry->flags & CT_LOOPBACK) || client_port) {
		error = AF_FN(rewrite_inner)(ctx, work, SOURCE, packet->daddr,
					     client_port ? client_port : inner->sport);
		if (error)
			return error;
	}
	if (options.packet.dsr == DSR_OPTION) {
		error = AF_FN(dsr_unquote)(ctx, work);
		if (error)
			return error;
	}
	error = AF_FN(rewrite_inner)(ctx, work, DESTINATION, to.address,
				     to.port ? to.port : inner->dport);
	if (error || !work->names_service || !AF_SAME(packet->saddr, inner->daddr))
		return error;
	AF_COPY(inner->daddr, to.address);
	return AF_FN(rewrite_address)(ctx, packet, SOURCE, to.address);
}

/* An ICMP error that a router sends about a packet of its receiver, whose flow conntrack knows. The
 * flow passed the policies: so does the error, whoever the router is.
 */
GLOBAL int AF_FN(is_about_flow)(CTX *ctx, struct AF_FN(work) * work)
{
	const struct ct_entry *entry;
	struct AF_FN(packet) * inner;

	work = OWN_WORK(work);
	if (!work)
		return 0;
	inner = &work->inner;
	if (!work->packet.related || !AF_FN(parse_inner)(ctx, &work->packet, inner) ||
	    !AF_SAME(inner->saddr, work->packet.daddr))
		return 0;
	AF_FN(ct_forward)(inner, &work->flow, CT_EGRESS);
	entry = AF_FN(ct_find)(&work->flow);
	if (!entry || ct_is_expired(entry, work->path.now)) {
		/* A reply. */
		AF_FN(ct_reverse)(inner, &work->flow, CT_EGRESS);
		entry = AF_FN(ct_find)(&work->flow);
	}
	return entry && !ct_is_expired(entry, work->path.now);
}

/* Asks the receiver's policy. Returns a drop reason, or 0; or ADMIT_ERROR. A function of its own
 * for the stack of `receive`.
 */
static __noinline int AF_FN(admit)(CTX *ctx, struct AF_FN(work) * work, int is_new)
{
	const struct AF_FN(packet) *packet = &work->packet;
	struct path *path = &work->path;
	__u32 ifindex = work->way.ifindex;
	const struct endpoint *facts = bpf_map_lookup_elem(&skep_endpoints, &ifindex);
	int denied;

	AF_FN(ask)(work, path->destination, path->source_identity, POLICY_INGRESS,
		   facts && (facts->flags & ENDPOINT_OPEN_INGRESS));
	denied = AF_FN(passes_policies)(packet) ? 0 : policy_check(ctx, path, &work->question);
	if (denied && packet->related && AF_FN(is_about_flow)(ctx, work)) {
		path->reason = CT_RESULT_RELATED;
		return ADMIT_ERROR;
	}
	if (denied && AF_SAME(packet->saddr, packet->daddr))
		return 0;
	if ((denied || is_new) && facts && (facts->verdicts & VERDICT_INGRESS))
		send_verdict(ctx, path, &work->question, denied);
	return denied;
}

/* The receiver's side: connection tracking, policy, translation back. Returns 0 to hand it over, or
 * less: a drop reason.
 */
GLOBAL int AF_FN(receive)(CTX *ctx, struct AF_FN(work) * work, __u32 how)
{
	const struct ct_entry *entry;
	struct AF_FN(packet) * packet;
	struct path *path;
	enum ct_scope scope = CT_REVERSE_FIRST;
	enum ct_result result;
	__be32 original[4] = {};
	int loopback = 0, denied = 0;
	__u32 ifindex;
	__u8 error;

	work = OWN_WORK(work);
	if (!work)
		return -DROP_INVALID;
	path = &work->path;
	packet = &work->packet;
	ifindex = work->way.ifindex;
	AF_TO_WORDS(original, packet->saddr);
	if (packet->ct_error)
		return FAIL(path, packet->ct_error);
	/* The sender's side knows whether it answers. */
	if ((how == FROM_POD || how == FROM_SERVICE) &&
	    (path->reason == CT_RESULT_ESTABLISHED || path->reason == CT_RESULT_NEW))
		scope = CT_FORWARD_FIRST;
	entry = AF_FN(ct_lookup)(ctx, work, CT_INGRESS, scope);
	result = path->reason;
	if (entry && (result == CT_RESULT_REPLY || result == CT_RESULT_RELATED)) {
		error = AF_FN(translate_back)(ctx, work, entry);
		if (error)
			return FAIL(path, error);
		goto accepted;
	}

	/* A pod that reaches itself through a service. */
	if (how == FROM_POD) {
#if AF == 4
		loopback = packet->saddr == options.packet.loopback4;
#else
		loopback = same6(packet->saddr, packet_options()->loopback6);
#endif
	}
	if (entry && (entry->flags & CT_LOOPBACK))
		loopback = 1;
	if (!loopback && how != FROM_INGRESS_PROXY) {
		denied = AF_FN(admit)(ctx, work, result == CT_RESULT_NEW);
		if (denied == ADMIT_ERROR)
			goto accepted;
		if (denied)
			return FAIL(path, denied);
	}
	if (result == CT_RESULT_NEW) {
		if (how == FROM_NETWORK)
			AF_FN(forget_nodeport)(work);
		__builtin_memset(&work->fresh, 0, sizeof(work->fresh));
		work->fresh.source_identity = path->source_identity;
		work->fresh.flags = loopback ? CT_LOOPBACK : 0;
		work->fresh.flags2 = FROM_TUNNEL ? CT2_FROM_TUNNEL : 0;
		if (AF_FN(ct_create)(ctx, work, CT_INGRESS, 1))
			return FAIL(path, DROP_CT_CREATE);
	}
accepted:
	if (packet->related && AF_FN(parse_inner)(ctx, packet, &work->inner)) {
		error = AF_FN(translate_error)(ctx, work, 0);
		if (error)
			return FAIL(path, error);
	}
	COUNT_PACKET(ctx, REASON_FORWARDED, METRIC_INGRESS, METRIC_FILE_LXC);
	CAPTURE(ctx, path, CAPTURE_DELIVERY, ifindex);
	trace_packet(ctx, path, TRACE_TO_ENDPOINT, ifindex, original);
	return 0;
}

/* Hands the packet to a pod of this node. Returns a verdict, or less: a drop reason. */
static __always_inline int AF_FN(deliver)(CTX *ctx, struct AF_FN(work) * work,
					  const struct lxc_value *receiver, enum delivery how)
{
	struct path *path = &work->path;
	struct ethernet *ethernet;
	int error;

	DEBUG(ctx, path, DEBUG_LOCAL_DELIVERY, receiver->endpoint, path->source_identity);
	error = AF_FN(hop)(ctx, &work->packet, path);
	if (error)
		return error;
	ethernet = packet_bytes(ctx, 0, sizeof(*ethernet));
	if (!ethernet)
		return FAIL(path, DROP_WRITE);
	copy_mac(ethernet->source, receiver->node_mac);
	copy_mac(ethernet->destination, receiver->mac);
	COUNT_PACKET(ctx, REASON_FORWARDED, how == FROM_POD ? METRIC_EGRESS : METRIC_INGRESS,
		     METRIC_FILE_LOCAL_DELIVERY);
	/* The program at the interface asks the policy: it sees this packet, too. But it lets pass
	 * what the pod sends to itself.
	 */
	if ((is_from_stack(how) ||
	     (options.packet.legacy_routing && receiver->ifindex != ctx->ifindex)) &&
	    has_egress_program(receiver)) {
		if (how == FROM_NETWORK)
			AF_FN(forget_nodeport)(work);
		ctx->mark = mark_with_identity(ctx->mark & ~MARK_MASK, path->source_identity) |
			    (how == FROM_INGRESS_PROXY ? MARK_INGRESS_PROXY : MARK_IDENTITY);
		return bpf_redirect(receiver->ifindex, 0);
	}
	path->endpoint = receiver->endpoint;
	path->destination = receiver->endpoint;
	path->destination_identity = receiver->identity;
	path->direction = METRIC_INGRESS;
	path->file = METRIC_FILE_LXC;
	work->way.ifindex = receiver->ifindex;
	error = AF_FN(receive)(ctx, work, how);
	if (error)
		return error;
	if (is_from_stack(how) || options.packet.legacy_routing)
		return bpf_redirect(receiver->ifindex, 0);
	/* The frame in the tunnel was for an interface of the other node. */
	if (FROM_TUNNEL)
		bpf_skb_change_type(ctx, PACKET_HOST);
	return bpf_redirect_peer(receiver->ifindex, 0);
}

/* Bytes from the network header on, of a segment if there are several: a route's MTU counts these.
 * 0: unknown.
 */
static __always_inline __u16 AF_FN(l3_length)(CTX *ctx, const struct AF_FN(packet) * packet)
{
	__u32 length = packet_length(ctx) - L3;
	const struct tcp *tcp;

	if (ctx->gso_size) {
		length = packet->l4 - L3 + ctx->gso_size;
		if (packet->proto == IPPROTO_UDP) {
			length += sizeof(struct udp);
		} else {
			tcp = packet_bytes(ctx, packet->l4, sizeof(*tcp));
			if (packet->proto != IPPROTO_TCP || !tcp)
				return 0;
			length += (tcp->offset >> 4) * 4;
		}
	}
	return length < 0xffff ? length : 0xffff;
}

/* Sends the packet where the routes of the node say, one `hop` further. Returns a verdict, or less:
 * a drop reason; TC_ACT_OK leaves it to the kernel, which knows better. `ifindex` is then 0.
 */
static __noinline int AF_FN(route)(CTX *ctx, struct AF_FN(work) * work, int hop)
{
	struct AF_FN(packet) *packet = &work->packet;
	struct path *path = &work->path;
	struct bpf_redir_neigh next = {};
	struct bpf_fib_lookup fib = {};
	long found;
	int error;

	AF_FN(ask_routes)(ctx, packet->saddr, packet->daddr, &fib);
	fib.tot_len =
		options.packet.dsr && work->length ? work->length : AF_FN(l3_length)(ctx, packet);
	found = bpf_fib_lookup(ctx, &fib, sizeof(fib), fib_flags());
	if (found == BPF_FIB_LKUP_RET_NOT_FWDED)
		return TC_ACT_OK;
	if (found == BPF_FIB_LKUP_RET_FRAG_NEEDED) {
		work->mtu = fib.mtu_result;
		return FAIL(path, DROP_TOO_LARGE);
	}
	if (found != BPF_FIB_LKUP_RET_SUCCESS && found != BPF_FIB_LKUP_RET_NO_NEIGH) {
		path->extended_error = found;
		return FAIL(path, DROP_NO_FIB);
	}
	error = hop ? AF_FN(hop)(ctx, packet, path) : 0;
	if (error)
		return error;
	work->way.ifindex = fib.ifindex;
	/* The gateway may be of the other family (RFC 5549). */
	next.nh_family = fib.family;
	__builtin_memcpy(&next.ipv6_nh, &fib.ipv6_dst, sizeof(next.ipv6_nh));
	return bpf_redirect_neigh(fib.ifindex, &next, sizeof(next), 0);
}

/* Other nodes would take it for a packet of this one, with any identity. */
static __always_inline int AF_FN(looks_tunnelled)(const struct AF_FN(packet) * packet)
{
	return options.packet.tunnel && packet->proto == IPPROTO_UDP &&
	       packet->dport == bpf_htons(options.packet.tunnel_port);
}

/* The sender is a backend of the redirect policy at its packet's destination, and reaches that
 * itself.
 */
static __noinline int AF_FN(skips_redirect)(const struct AF_FN(work) * work)
{
	struct AF_JOIN(lb, _skip_key) key = {
		.netns_cookie = work->sender.netns_cookie,
		.port = work->packet.dport,
	};

	AF_COPY(key.address, work->packet.daddr);
	return key.netns_cookie && bpf_map_lookup_elem(&SKIP, &key);
}

/* A pod that calls one backend by two addresses at once; `entry` is what was found, or NULL.
 * Returns 0, a drop reason, or less: the packet's flow got a port of its own, and is new. A
 * function of its own for the stack of its caller.
 */
static __noinline int AF_FN(set_apart)(CTX *ctx, struct AF_FN(work) * work,
				       const struct ct_entry *entry)
{
	int error;

	if (entry &&
	    (work->path.reason != CT_RESULT_ESTABLISHED || AF_FN(is_same_flow)(work, entry)))
		return 0;
	if (!entry)
		entry = AF_FN(half_closed)(work);
	if (!entry || !AF_FN(is_of_another)(work, entry))
		return 0;
	error = AF_FN(take_own_port)(ctx, work);
	work->path.reason = CT_RESULT_NEW;
	return error ? error : -1;
}

/* Sender's side of a packet whose headers were read. Returns as `AF_FN(send)`. */
static __always_inline int AF_FN(send_tracked)(CTX *ctx, struct AF_FN(work) * work)
{
	struct AF_JOIN(lb, _service_key) *key = &work->key;
	struct translation *translation = &work->translation;
	const struct endpoint *sender = &work->sender;
	struct AF_FN(packet) *packet = &work->packet;
	struct path *path = &work->path;
	const struct lb_service *svc = NULL;
	const struct lxc_value *local = NULL;
	const struct ct_entry *entry = NULL;
	enum ct_result result;
	int error, looked_up = 0, loopback = 0;

	__builtin_memset(translation, 0, sizeof(*translation));
	translation->loopback = 1;

	if (options.packet.services && has_ports(packet->proto)) {
		if (packet->error)
			return FAIL(path, packet->error);
		__builtin_memset(key, 0, sizeof(*key));
		key->dport = packet->dport;
		key->proto = packet->proto;
		AF_COPY(key->address, packet->daddr);
		svc = AF_FN(master)(key);
		if (DEBUGS())
			AF_FN(debug_frontend)(ctx, work, svc != NULL);
		if (!svc && !packet->ct_error) {
			entry = AF_FN(ct_lookup)(ctx, work, CT_EGRESS, CT_REVERSE_FIRST);
			local = AF_FN(lxc_lookup)(packet->daddr);
			looked_up = 1;
			/* Pods have no surrogates: those are of nodes. */
			if (!entry && (!local || (local->flags & LXC_HOST))) {
				svc = AF_FN(surrogate)(key, 0, 1);
				if (svc) {
					AF_FN(ct_address)(translation->address, packet->daddr);
					translation->port = packet->dport;
				}
			}
		}
		if (svc && (lb_is_l7(svc) || (svc->flags2 & LB2_NAT46X64) ||
			    ((svc->flags2 & LB2_LOCAL_REDIRECT) && AF_FN(skips_redirect)(work))))
			svc = NULL;
	}
	if (svc) {
		work->service = *svc;
		error = AF_FN(translate)(ctx, work);
		if (error == DROP_NO_SERVICE && options.packet.reply_no_backend)
			return AF_FN(reply_error)(ctx, packet, AF_FN(NO_BACKEND), ctx->len);
		if (error)
			return FAIL(path, error);
		looked_up = 0;
		loopback = translation->loopback;
	}
	if (packet->ct_error)
		return FAIL(path, packet->ct_error);
	if (!looked_up) {
		entry = AF_FN(ct_lookup)(ctx, work, CT_EGRESS, svc ? CT_FORWARD : CT_REVERSE_FIRST);
		/* Endpoints of this node by hash, all others by longest prefix. */
		local = AF_FN(lxc_lookup)(packet->daddr);
	}
	if (svc) {
		error = AF_FN(set_apart)(ctx, work, entry);
		if (error > 0)
			return FAIL(path, error);
		if (error)
			entry = NULL;
	}
	result = path->reason;
	if (entry && (entry->flags & CT_LOOPBACK))
		loopback = 1;

	if (loopback)
		local = AF_FN(lxc_lookup)(sender->AF_FN(ipv));
	if (local)
		path->destination_identity =
			local->flags & LXC_HOST ? IDENTITY_HOST : local->identity;
	else
		path->destination_identity = AF_FN(find_peer)(ctx, work, packet->daddr);
	/* Answers go the way that the flow came. */
	if (options.packet.tunnel && entry && (entry->flags2 & CT2_FROM_TUNNEL))
		work->peer.flags &= ~IPCACHE_SKIP_TUNNEL;

	if (result != CT_RESULT_REPLY && result != CT_RESULT_RELATED && !loopback) {
		AF_FN(ask)(work, sender->id, path->destination_identity, POLICY_EGRESS,
			   sender->flags & ENDPOINT_OPEN_EGRESS);
		if (AF_FN(looks_tunnelled)(packet))
			error = DROP_ENCAPSULATION;
		else
			error = AF_FN(passes_policies)(packet)
					? 0
					: policy_check(ctx, path, &work->question);
		if ((error || result == CT_RESULT_NEW) && (sender->verdicts & VERDICT_EGRESS))
			send_verdict(ctx, path, &work->question, error);
		if (error)
			return FAIL(path, error);
	}
	if (result == CT_RESULT_NEW ||
	    (entry && result == CT_RESULT_ESTABLISHED && !AF_FN(is_same_flow)(work, entry))) {
		__builtin_memset(&work->fresh, 0, sizeof(work->fresh));
		work->fresh.source_identity = sender->identity;
		work->fresh.rev_nat_index = translation->rev_nat_index;
		work->fresh.flags = loopback ? CT_LOOPBACK : 0;
		__builtin_memcpy(work->fresh.nat_address, translation->address,
				 sizeof(work->fresh.nat_address));
		work->fresh.nat_port = translation->port;
		AF_FN(ct_set_client_port)(&work->fresh, translation->sport);
		if (entry)
			DEBUG(ctx, path, DEBUG_STALE_CT, translation->rev_nat_index,
			      entry->rev_nat_index);
		if (AF_FN(ct_create)(ctx, work, CT_EGRESS, 1))
			return FAIL(path, DROP_CT_CREATE);
	}

	if (options.packet.identity_mark)
		ctx->mark = mark_with_identity(ctx->mark & ~MARK_MASK, sender->identity) |
			    MARK_IDENTITY;
	error = TC_ACT_OK;
	work->way.ifindex = 0;
	if (local && !(local->flags & (LXC_HOST | LXC_AT_HOST_NS))) {
		/* The kernel has a route to a pod with a program of its own. */
		if (!options.packet.legacy_routing || loopback || !has_egress_program(local))
			return AF_FN(deliver)(ctx, work, local, FROM_POD);
		goto out;
	}
	/* The node's health checker talks to the service. */
	if (options.packet.health_probes && local) {
		const struct ct_entry *probe = AF_FN(nodeport_flow)(ctx, work);

		error = probe ? AF_FN(translate_back)(ctx, work, probe) : 0;
		if (error)
			return FAIL(path, error);
	}
#if AF == 4
	if (options.packet.nat46x64 && local && answers_nat64(ctx, work))
		return nat46(ctx, work, GOES_ON_AS_6);
#else
	if (options.packet.nat46x64 && !local && is_embedded(packet->daddr)) {
		error = nat46_answer(ctx, work);
		if (error)
			return error;
	}
#endif
	error = TC_ACT_OK;
	if (options.packet.tunnel && !local && is_tunnelled(&work->peer))
		return encapsulate(ctx, path, &work->peer, sender->identity);
	if (!local && !options.packet.legacy_routing) {
		error = AF_FN(route)(ctx, work, 1);
		/* The kernel fragments the packet, or tells the pod. */
		if (error == -DROP_TOO_LARGE)
			error = TC_ACT_OK;
		if (error < 0)
			return error;
		/* An answer to the sender, in place of the packet. */
		if (error != TC_ACT_OK && !work->way.ifindex)
			return error;
	}
out:
	COUNT_PACKET(ctx, REASON_FORWARDED, METRIC_EGRESS, METRIC_FILE_LXC);
	CAPTURE(ctx, path, CAPTURE_DELIVERY, work->way.ifindex);
	trace_packet(ctx, path, work->way.ifindex ? TRACE_TO_NETWORK : TRACE_TO_STACK,
		     work->way.ifindex, NULL);
	return error;
}

#if AF == 6
/* A pod that reaches itself through a service has a link-local address as client. A server that
 * binds no address answers it from the pod's link-local address: the answer gets the address that
 * was asked. Returns a drop reason, or 0.
 */
GLOBAL int answer_itself(CTX *ctx, struct work6 *work)
{
	const struct ct_entry *entry;
	struct packet6 *packet;

	work = OWN_WORK(work);
	if (!work)
		return DROP_INVALID;
	packet = &work->packet;
	ct_reverse6(packet, &work->flow, CT_EGRESS);
	copy6(work->flow.saddr, work->sender.ipv6);
	entry = ct_find6(&work->flow);
	if (!entry || !(entry->flags & CT_LOOPBACK) || ct_is_expired(entry, work->path.now))
		return 0;
	return rewrite_address6(ctx, packet, SOURCE, work->sender.ipv6);
}
#endif

/* A packet that a pod sends. Returns a verdict, or less: a drop reason. */
GLOBAL int AF_FN(send)(CTX *ctx, struct AF_FN(work) * work)
{
	const struct endpoint *sender;
	struct AF_FN(packet) * packet;
	struct path *path;
	__u8 error;

	work = OWN_WORK(work);
	if (!work)
		return -DROP_INVALID;
	sender = &work->sender;
	packet = &work->packet;
	path = &work->path;
	error = AF_FN(read_packet)(ctx, work);
	if (error)
		return FAIL(path, error);
#if AF == 6
	if (packet->proto == IPPROTO_ICMPV6)
		DEBUG(ctx, path, DEBUG_ICMP6, packet->icmp_type, 0);
	/* Neighbours are looked for before addresses are settled. */
	if (packet->proto == IPPROTO_ICMPV6 && packet->icmp_type == ICMP6_SOLICITATION)
		return answer_solicitation(ctx, packet, sender->mac, path, 1);
	if (packet->proto == IPPROTO_ICMPV6 && packet->icmp_type == ICMP6_ADVERTISEMENT)
		return TC_ACT_OK;
	if (is_link_local(packet->saddr) && same6(packet->daddr, packet_options()->loopback6)) {
		error = answer_itself(ctx, work);
		if (error)
			return FAIL(path, error);
	}
#endif
	if ((sender->flags & ENDPOINT_VERIFY_SOURCE) && !AF_SAME(packet->saddr, sender->AF_FN(ipv)))
		return FAIL(path, DROP_INVALID_SOURCE);
	/* A fragment whose first one was not seen. */
	if (packet->error && packet->fragment)
		return FAIL(path, packet->error);
	return AF_FN(send_tracked)(ctx, work);
}
