/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Packets of one address family that leave by the interface of a pod. */

/* A packet to the pod of this interface, from `how`. Returns a verdict. */
GLOBAL int AF_FN(to_endpoint)(CTX *ctx, scratch_t *scratch, __u32 how)
{
#if AF == 6
	struct packet6 *packet;
#endif
	struct trace_ctx *trace;
	__u8 broken;
	int error;

	scratch = OWN_SCRATCH(scratch);
	if (!scratch)
		return -DROP_INVALID;
	trace = &scratch->trace;
	broken = AF_FN(read_packet)(ctx, scratch);
	if (broken)
		return FAIL(trace, broken);
#if AF == 6
	packet = &scratch->packet;
	/* Neighbour discovery between kernel and pod, never forwarded (RFC 4861 7.1). */
	if (packet->proto == IPPROTO_ICMPV6 && packet->hop_limit == 255 &&
	    (packet->icmp_type == ICMP6_SOLICITATION || packet->icmp_type == ICMP6_ADVERTISEMENT))
		return TC_ACT_OK;
	/* Multicast listener reports as well (RFC 4291 2.7). */
	if (packet->proto == IPPROTO_ICMPV6 && packet->icmp_type == ICMP6_LISTENER_REPORT &&
	    is_link_multicast(packet->daddr))
		return TC_ACT_OK;
#endif
	AF_FN(resolve_sender)(scratch);
	trace->source_identity = AF_FN(host_identity)(ctx, scratch);
	if (options.packet.host_firewall && trace->source_identity == IDENTITY_HOST) {
		/* Not those of the proxy to the proxy. */
		error = AF_FN(host_send)(ctx, scratch,
					 how == FROM_EGRESS_PROXY ? IDENTITY_WORLD : IDENTITY_HOST);
		if (error)
			return error;
	}
	scratch->next_hop.ifindex = ctx->ifindex;
	error = AF_FN(receive)(ctx, scratch, how);
	/* At egress, no socket can be assigned. */
	if (error == TO_PROXY)
		return FAIL(trace, DROP_PROXY_ASSIGN);
	return error ? error : TC_ACT_OK;
}
