/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Forwarding of packets of one address family: hop limit, policy, routes. */

/* Port in policies. */
static __always_inline __be16 AF_FN(policy_port)(const packet_t *packet)
{
	if (packet->proto != ICMP_PROTO)
		return packet->dport;
	return options.packet.icmp_rules ? bpf_htons(packet->icmp_type) : 0;
}

/* Path MTU errors bypass policies: connections would hang without. */
static __always_inline int AF_FN(bypasses_policy)(const packet_t *packet)
{
	return options.packet.icmp_frag_needed && AF_FN(is_mtu_error)(packet);
}

static __always_inline void AF_FN(init_policy_lookup)(scratch_t *scratch, __u32 endpoint,
						      __u32 identity, __u8 direction, __u8 flags)
{
	struct policy_lookup *lookup = &scratch->lookup;
	__u8 open = direction == POLICY_EGRESS ? ENDPOINT_OPEN_EGRESS : ENDPOINT_OPEN_INGRESS;

	lookup->endpoint = endpoint;
	lookup->identity = identity;
	lookup->direction = direction;
	lookup->proto = scratch->packet.proto;
	lookup->port = AF_FN(policy_port)(&scratch->packet);
	lookup->open = flags & open;
	lookup->audit = !!(flags & ENDPOINT_AUDIT);
	lookup->cookie = 0;
	lookup->proxy_port = 0;
	lookup->match = MATCH_NONE;
	lookup->auth = 0;
}

/* Decrements the hop limit, or replies with "time exceeded". Returns 0, or a verdict. */
static __always_inline int AF_FN(take_hop_or_reply)(CTX *ctx, packet_t *packet,
						    struct trace_ctx *trace)
{
	__u8 error = AF_FN(take_hop)(ctx, packet);

	if (error == DROP_TTL)
		return AF_FN(send_time_exceeded)(ctx, packet, trace);
	return error ? FAIL(trace, error) : 0;
}

/* A request exceeds its hop limit after DNAT: the error is about the original packet. Returns a
 * verdict.
 */
static __always_inline int AF_FN(request_time_exceeded)(CTX *ctx, scratch_t *scratch)
{
#if AF == 6
	int error = untranslate6(ctx, scratch);

	if (error)
		return FAIL(&scratch->trace, error);
#endif
	return AF_FN(send_time_exceeded)(ctx, &scratch->packet, &scratch->trace);
}

/* L3 length, of a segment with GSO, as compared with a route's MTU. 0: unknown. */
static __always_inline __u16 AF_FN(l3_length)(CTX *ctx, const packet_t *packet)
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

/* Routes the packet by the FIB, and decrements the hop limit with `with_hop`. Returns a verdict;
 * TC_ACT_OK leaves it to the kernel, with `ifindex` 0.
 */
static __noinline int AF_FN(route)(CTX *ctx, scratch_t *scratch, int with_hop)
{
	packet_t *packet = &scratch->packet;
	struct trace_ctx *trace = &scratch->trace;
	struct bpf_redir_neigh next = {};
	struct bpf_fib_lookup fib = {};
	struct flow *flow;
	long found;
	int error;

	flow_note_mtu();
	AF_FN(init_fib_lookup)(ctx, packet->saddr, packet->daddr, &fib);
	fib.tot_len = options.packet.dsr && scratch->length ? scratch->length
							    : AF_FN(l3_length)(ctx, packet);
	found = bpf_fib_lookup(ctx, &fib, sizeof(fib), fib_flags());
	if (found == BPF_FIB_LKUP_RET_NOT_FWDED)
		return TC_ACT_OK;
	if (found == BPF_FIB_LKUP_RET_FRAG_NEEDED) {
		scratch->mtu = fib.mtu_result;
		flow_stop();
		return FAIL(trace, DROP_TOO_LARGE);
	}
	if (found != BPF_FIB_LKUP_RET_SUCCESS && found != BPF_FIB_LKUP_RET_NO_NEIGH) {
		trace->extended_error = found;
		return FAIL(trace, DROP_NO_FIB);
	}
	error = with_hop ? AF_FN(take_hop_or_reply)(ctx, packet, trace) : 0;
	if (error)
		return error;
	scratch->next_hop.ifindex = fib.ifindex;
	/* The gateway may be of the other family (RFC 5549). */
	next.nh_family = fib.family;
	__builtin_memcpy(&next.ipv6_nh, &fib.ipv6_dst, sizeof(next.ipv6_nh));
	flow = flow_note_exit(FLOW_NEIGHBOUR, fib.ifindex);
	if (flow) {
		flow->next_family = next.nh_family;
		copy6(flow->next, (const __be32 *)&next.ipv6_nh);
	}
	return bpf_redirect_neigh(fib.ifindex, &next, sizeof(next), 0);
}
