/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Packets of one address family at devices of the node. */

/* Sends a trace event of an arriving packet, if enabled: it costs an ipcache lookup. */
static __always_inline void AF_FN(trace_from_network)(CTX *ctx, struct trace_ctx *trace)
{
	const ip_t *ip;

	if (!traces_arrivals(trace))
		return;
	ip = packet_bytes(ctx, L3, sizeof(*ip));
	if (ip)
		trace->source_identity = AF_FN(identity_of)(ip->source);
	trace_packet(ctx, trace, TRACE_FROM_NETWORK, ctx->ifindex, NULL);
}

/* A packet to the node or to an unknown address: a service, or a reply. Returns a verdict;
 * NOT_HANDLED if neither.
 */
static __always_inline int AF_FN(from_network_node)(CTX *ctx, scratch_t *scratch, int known)
{
	const packet_t *packet = &scratch->packet;
	const struct lb_service *svc;
	int unknown_port = 0, error;

	OPAQUE(known);
	if (has_ports(packet->proto) && options.nodeport &&
	    (!(xdp_metadata(ctx) & METADATA_NO_SERVICE) ||
	     (options.packet.ipip_termination && scratch->is_decapsulated))) {
		__builtin_memset(&scratch->key, 0, sizeof(scratch->key));
		svc = DEBUGS(&scratch->trace)
			      ? AF_FN(debug_outside)(ctx, scratch, known, &unknown_port)
			      : AF_FN(outside_service)(scratch, known, &unknown_port);
		if (unknown_port)
			return FAIL(&scratch->trace, DROP_NO_SERVICE);
		if (svc && !lb_is_l7(svc) && has_usable_backends(svc) &&
		    !lb_delegates_if_local(svc)) {
			scratch->service = *svc;
#if AF == 4
			if (scratch->service.flags2 & LB2_NAT46X64)
				return nat46_request(ctx, scratch);
#endif
			return AF_FN(nodeport)(ctx, scratch);
		}
	}
	if (options.packet.ipip_termination && scratch->is_decapsulated)
		return FAIL(&scratch->trace, DROP_NO_SERVICE);
	if (packet->ct_error)
		return NOT_HANDLED;
	if (options.packet.dsr == DSR_OPTION && known && has_ports(packet->proto)) {
		error = AF_FN(dsr_receive)(ctx, scratch);
		if (error)
			return error;
	}
	return AF_FN(reverse_nodeport)(ctx, scratch);
}

/* A packet received by a device. Returns a verdict. */
GLOBAL int AF_FN(from_network)(CTX *ctx, scratch_t *scratch)
{
	packet_t *packet;
	const struct lxc_value *local;
	struct trace_ctx *trace;
	AF_ADDRESS(source);
	int error = 0;
	__u8 broken;

	scratch = OWN_SCRATCH(scratch);
	if (!scratch)
		return -DROP_INVALID;
	trace = &scratch->trace;
	packet = &scratch->packet;
	broken = AF_FN(read_packet)(ctx, scratch);
	if (broken) {
		trace->source_identity = AF_FN(identity_of)(packet->saddr);
		return FAIL(trace, broken);
	}
#if AF == 6
	if (packet->proto == IPPROTO_ICMPV6 && packet->icmp_type == ICMP6_SOLICITATION)
		return reply_solicitation(ctx, packet, scratch->device.mac, trace, 0);
#endif
	trace->source_identity = 0;
	scratch->reverse_translated = 0;
	AF_COPY(source, packet->saddr);
	local = AF_FN(lxc_lookup)(packet->daddr);
	if (has_ports(packet->proto) && packet->error)
		error = FAIL(trace, packet->error);
	else if (!local || (local->flags & LXC_HOST))
		error = AF_FN(from_network_node)(ctx, scratch, local != NULL);
	else if (options.packet.dsr == DSR_OPTION && has_ports(packet->proto) && !packet->ct_error)
		error = AF_FN(dsr_receive)(ctx, scratch);
	if (error) {
		/* The identity matters only for drops. */
		if (error < 0 && !trace->source_identity && trace->file == METRIC_FILE_HOST)
			trace->source_identity = AF_FN(identity_of)(source);
		return error;
	}
	/* An answer may be for a pod. */
	if (scratch->reverse_translated)
		local = AF_FN(lxc_lookup)(packet->daddr);
	if ((options.packet.nat46x64 & NAT46X64_GATEWAY) && !local) {
#if AF == 4
		if (is_gateway_destination(packet->daddr))
			return nat46(ctx, scratch, ROUTE_AS_IPV6);
#else
		if (is_embedded(packet->daddr))
			return nat64(ctx, scratch);
#endif
	}
	if (!local || (local->flags & (LXC_HOST | LXC_AT_HOST_NS)))
		return options.packet.host_firewall ? AF_FN(host_receive)(ctx, scratch, 0)
						    : TC_ACT_OK;
	trace->source_identity = AF_FN(identity_of)(packet->saddr);
	return AF_FN(deliver_or_pass)(ctx, scratch, local, FROM_NETWORK);
}

/* The host firewall at a device (`ingress`: at cilium_host or cilium_net), on packets with an
 * identity in their mark, or 0. Returns 0 to continue, or less: a drop reason.
 */
GLOBAL int AF_FN(check_host)(CTX *ctx, scratch_t *scratch, __u32 marked, __u32 ingress)
{
	scratch = OWN_SCRATCH(scratch);
	if (!scratch)
		return -DROP_INVALID;
	/* Invalid packets of the node itself are not dropped here. */
	if (AF_FN(read_packet)(ctx, scratch))
		return 0;
	if (ingress)
		return AF_FN(host_receive)(ctx, scratch, marked);
	return AF_FN(host_send)(ctx, scratch, marked);
}

/* A packet of the node that its policy redirects to the proxy of its mark. Returns a verdict. */
GLOBAL int AF_FN(host_to_proxy)(CTX *ctx, scratch_t *scratch)
{
	__u8 broken;

	scratch = OWN_SCRATCH(scratch);
	if (!scratch)
		return -DROP_INVALID;
	broken = AF_FN(read_packet)(ctx, scratch);
	if (broken)
		return FAIL(&scratch->trace, broken);
	/* The frame is for the next hop. */
	bpf_skb_change_type(ctx, PACKET_HOST);
	return AF_FN(to_proxy)(ctx, scratch, ctx->mark >> 16);
}

/* A packet that leaves by a device. Returns a verdict. */
GLOBAL int AF_FN(to_network)(CTX *ctx, scratch_t *scratch)
{
	packet_t *packet;
	struct trace_ctx *trace;
	__be32 original[4] = {};
	int error;

	scratch = OWN_SCRATCH(scratch);
	if (!scratch)
		return -DROP_INVALID;
	trace = &scratch->trace;
	packet = &scratch->packet;
	/* Invalid packets of the node itself are not dropped here. */
	if (AF_FN(read_packet)(ctx, scratch) || packet->ct_error)
		goto out;
	error = AF_FN(reverse_service)(ctx, scratch);
	if (error < 0)
		return error;
	if (error) {
		mark_snat_done(ctx);
#if AF == 6
		if (options.packet.nat46x64 && is_embedded(packet->daddr))
			return nat64(ctx, scratch);
#endif
		/* The program there counts it. */
		error = AF_FN(route_reply)(ctx, scratch);
		if (error)
			return error;
		goto out;
	}
	if (!options.packet.AF_FN(masquerade) || !AF_FN(has_translation)(packet->proto) ||
	    !AF_FN(masquerade_target)(ctx, scratch))
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
			error = AF_FN(nat_egress_error)(ctx, scratch);
			if (error)
				return FAIL(trace, error);
			goto out;
		default:
			/* The node's own neighbours and routers. */
			if (scratch->target.needs_ct)
				goto out;
			return FAIL(trace, DROP_NAT_PROTOCOL);
		}
	}
	error = AF_FN(nat_egress)(ctx, scratch);
	if (error)
		return FAIL(trace, error);
	mark_snat_done(ctx);
out:
	COUNT_PACKET(ctx, REASON_FORWARDED, METRIC_EGRESS, METRIC_FILE_EGRESS);
	trace_packet(ctx, trace, TRACE_TO_NETWORK, ctx->ifindex, original);
	return TC_ACT_OK;
}

/* A packet of the node to pods, with this mark. Returns a verdict. */
GLOBAL int AF_FN(from_host)(CTX *ctx, scratch_t *scratch, __u32 mark)
{
	packet_t *packet;
	const struct lxc_value *local;
	struct trace_ctx *trace;
	const struct ipcache_value *to;
	struct ethernet *ethernet;
	__u32 world = world_identity(options.packet.dual_stack, AF == 6);
	__u32 net = options.packet.cilium_net;
	const struct device *device;
	__u8 broken;
	int error;

	scratch = OWN_SCRATCH(scratch);
	if (!scratch)
		return -DROP_INVALID;
	trace = &scratch->trace;
	packet = &scratch->packet;
	broken = AF_FN(read_packet)(ctx, scratch);
	if (broken)
		return FAIL(trace, broken);
	if (options.packet.host_firewall) {
		error = AF_FN(host_send)(ctx, scratch,
					 filtered_identity(mark, sender_of_mark(mark)));
		if (error)
			return error;
	}
	AF_FN(resolve_sender)(scratch);
	local = AF_FN(lxc_lookup)(packet->daddr);
	if (local && (local->flags & (LXC_HOST | LXC_AT_HOST_NS)))
		return TC_ACT_OK;
	if (local) {
		/* The kernel forwards packets from outside as well. */
		if (options.packet.legacy_routing || has_socket(ctx))
			trace->source_identity = AF_FN(host_identity)(ctx, scratch);
		return AF_FN(deliver)(ctx, scratch, local, delivery_from_stack(mark));
	}
	to = AF_FN(ipcache_lookup)(packet->daddr);
	if (options.packet.tunnel) {
		set_peer(&scratch->peer, to);
		if (is_tunnelled(&scratch->peer))
			return encapsulate(ctx, trace, &scratch->peer,
					   AF_FN(host_identity)(ctx, scratch));
	}
	if (!to || to->identity == world || to->identity == IDENTITY_WORLD) {
		if (!is_from_proxy(mark))
			/* It would come back here. */
			return FAIL(trace, DROP_UNROUTABLE);
		ctx->mark = MARK_PROXY_TO_WORLD;
		return TC_ACT_OK;
	}
	device = bpf_map_lookup_elem(&skep_devices, &net);
	ethernet = packet_bytes(ctx, 0, sizeof(*ethernet));
	if (device && ethernet)
		copy_mac(ethernet->destination, device->mac);
	return TC_ACT_OK;
}
