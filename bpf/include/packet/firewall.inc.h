/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Host firewall, of one address family: the policy of the host endpoint on packets to and from the
 * addresses of the node. Flows are tracked also while the policy is open, so that their replies
 * pass once it is not.
 */

/* An ICMP error about a tracked flow of its receiver. See receive.inc.h */
GLOBAL int AF_FN(is_about_flow)(CTX *ctx, scratch_t *scratch);

/* Enforces the host's policy in `direction`, unless the packet is masqueraded: then its flow is
 * only tracked. `identity` is the other side's. Returns 0 to continue, less: a drop reason, or a
 * verdict: a packet to a proxy comes again, at ingress of cilium_host.
 */
GLOBAL int AF_FN(host_policy)(CTX *ctx, scratch_t *scratch, __u32 identity, __u32 direction,
			      __u32 is_masqueraded)
{
	__u8 ingress = direction == POLICY_INGRESS, open, ct = ingress ? CT_INGRESS : CT_EGRESS;
	const struct endpoint *host = host_endpoint();
	struct trace_ctx *trace;
	packet_t *packet;
	__u8 reason, report, events;
	__be16 proxy_port = 0;
	__u16 endpoint;
	int denied = 0;

	scratch = OWN_SCRATCH(scratch);
	if (!scratch)
		return -DROP_INVALID;
	trace = &scratch->trace;
	packet = &scratch->packet;
	open = is_masqueraded || !host ||
	       (host->flags & (ingress ? ENDPOINT_OPEN_INGRESS : ENDPOINT_OPEN_EGRESS));
#if AF == 6
	if (packet->proto == IPPROTO_ICMPV6 && is_exempt_icmp6(packet->icmp_type))
		return 0;
	if (packet->proto == IPPROTO_ICMPV6 && !packet->ct_error && !is_echo6(packet->icmp_type))
		return open || (host && (host->flags & ENDPOINT_AUDIT)) ? 0
									: FAIL(trace, DROP_ICMP6);
#endif
	if (packet->ct_error)
		return open ? 0 : FAIL(trace, packet->ct_error);
	reason = trace->reason;
	report = trace->report;
	endpoint = trace->endpoint;
	events = trace->events;
	AF_FN(ct_lookup)(ctx, scratch, ct, CT_REVERSE_FIRST);
	if (trace->reason == CT_RESULT_REPLY || trace->reason == CT_RESULT_RELATED)
		goto passed;
	if (!open && host && !AF_FN(bypasses_policy)(packet)) {
		trace->endpoint = host->id;
		trace_as(trace, host->events);
		AF_FN(init_policy_lookup)(scratch, host->id, identity, direction, host->flags);
		denied = policy_check(ctx, trace, &scratch->lookup);
		if (!denied)
			proxy_port = scratch->lookup.proxy_port;
		if (denied && ingress && AF_FN(is_about_flow)(ctx, scratch))
			goto passed;
		if ((denied || trace->reason == CT_RESULT_NEW) &&
		    (host->verdicts & (ingress ? VERDICT_INGRESS : VERDICT_EGRESS)))
			send_verdict(ctx, trace, &scratch->lookup, denied);
		if (denied) {
			trace->source_identity = ingress ? identity : IDENTITY_HOST;
			trace->destination_identity = ingress ? IDENTITY_HOST : identity;
			trace->direction = ingress ? METRIC_INGRESS : METRIC_EGRESS;
			return FAIL(trace, denied);
		}
	}
	if (trace->reason == CT_RESULT_NEW) {
		__builtin_memset(&scratch->fresh, 0, sizeof(scratch->fresh));
		scratch->fresh.source_identity = ingress ? identity : IDENTITY_HOST;
		scratch->fresh.flags = proxy_port ? CT_PROXY_REDIRECT : 0;
		scratch->fresh.flags2 = FROM_TUNNEL ? CT2_FROM_TUNNEL : 0;
		/* Of a full map, packets pass as without the firewall if the policy is open. */
		if (AF_FN(ct_create)(ctx, scratch, ct, 1) && !open)
			return FAIL(trace, DROP_CT_CREATE);
	}
	if (proxy_port) {
		flow_stop();
		ctx->mark = (__u32)proxy_port << 16 | MARK_TO_PROXY;
		return bpf_redirect(options.packet.cilium_host, BPF_F_INGRESS);
	}
passed:
	trace->reason = reason;
	trace->report = report;
	trace->endpoint = endpoint;
	trace->events = events;
	return 0;
}

/* A packet to the node, if it is one. `identity` is the sender's, 0: that of its address. Returns 0
 * to continue, or less: a drop reason.
 */
GLOBAL int AF_FN(host_receive)(CTX *ctx, scratch_t *scratch, __u32 identity)
{
	const struct lxc_value *local;
	packet_t *packet;

	scratch = OWN_SCRATCH(scratch);
	if (!scratch)
		return -DROP_INVALID;
	packet = &scratch->packet;
	local = AF_FN(lxc_lookup)(packet->daddr);
	if (!local || !(local->flags & LXC_HOST))
		return 0;
	if (!identity)
		identity = AF_FN(identity_of)(packet->saddr);
	/* No packet from outside is the host's. */
	if (identity == IDENTITY_HOST)
		identity = world_identity(options.packet.dual_stack, AF == 6);
	return AF_FN(host_policy)(ctx, scratch, identity, POLICY_INGRESS, 0);
}

/* A packet from the node, if it is one. `marked` is the identity in its mark: packets of pods have
 * the node's address as well, masqueraded by the kernel. Returns as host_policy().
 */
GLOBAL int AF_FN(host_send)(CTX *ctx, scratch_t *scratch, __u32 marked)
{
	const struct lxc_value *local;
	packet_t *packet;

	scratch = OWN_SCRATCH(scratch);
	if (!scratch)
		return -DROP_INVALID;
	packet = &scratch->packet;
	local = AF_FN(lxc_lookup)(packet->saddr);
	if (!local || !(local->flags & LXC_HOST))
		return 0;
	local = AF_FN(lxc_lookup)(packet->daddr);
	if (local && (local->flags & LXC_HOST))
		return 0;
	return AF_FN(host_policy)(ctx, scratch,
				  local ? local->identity : AF_FN(identity_of)(packet->daddr),
				  POLICY_EGRESS, marked && marked != IDENTITY_HOST);
}
