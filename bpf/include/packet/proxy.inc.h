/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Redirects packets of one address family to proxies of the node, by assigning their sockets: the
 * rule of MARK_TO_PROXY routes them to the node. Only at ingress of an interface.
 */

/* The listener of a proxy at the loopback address. */
static __always_inline void AF_FN(listener_tuple)(struct bpf_sock_tuple *tuple, __be16 port)
{
	__builtin_memset(tuple, 0, sizeof(*tuple));
#if AF == 4
	tuple->ipv4.daddr = bpf_htonl(0x7f000001);
#else
	tuple->ipv6.daddr[3] = bpf_htonl(1);
#endif
	tuple->AF_FN(ipv).dport = port;
}

/* Redirects a packet to the proxy at `port`, in network byte order; 0: a reply, to the connection
 * of a proxy with these addresses. Returns a verdict.
 */
GLOBAL int AF_FN(to_proxy)(CTX *ctx, scratch_t *scratch, __u32 port)
{
	const __u32 size = sizeof(((struct bpf_sock_tuple *)0)->AF_FN(ipv));
	struct bpf_sock_tuple tuple = {};
	struct bpf_sock *socket = NULL;
	struct trace_ctx *trace;
	packet_t *packet;
	long error;

	scratch = OWN_SCRATCH(scratch);
	if (!scratch)
		return -DROP_INVALID;
	flow_stop();
	trace = &scratch->trace;
	packet = &scratch->packet;
	AF_COPY(tuple.AF_FN(ipv).saddr, packet->saddr);
	AF_COPY(tuple.AF_FN(ipv).daddr, packet->daddr);
	tuple.AF_FN(ipv).sport = packet->sport;
	tuple.AF_FN(ipv).dport = packet->dport;
	if (packet->proto == IPPROTO_TCP) {
		socket = bpf_skc_lookup_tcp(ctx, &tuple, size, BPF_F_CURRENT_NETNS, 0);
		/* A server of the node that listens at the port of the destination. */
		if (socket && socket->state == BPF_TCP_LISTEN) {
			bpf_sk_release(socket);
			socket = NULL;
		}
		if (!socket && port) {
			AF_FN(listener_tuple)(&tuple, port);
			socket = bpf_skc_lookup_tcp(ctx, &tuple, size, BPF_F_CURRENT_NETNS, 0);
			if (socket && socket->state != BPF_TCP_LISTEN) {
				bpf_sk_release(socket);
				socket = NULL;
			}
		}
	} else if (packet->proto == IPPROTO_UDP) {
		if (port)
			AF_FN(listener_tuple)(&tuple, port);
		socket = bpf_sk_lookup_udp(ctx, &tuple, size, BPF_F_CURRENT_NETNS, 0);
		/* Another server of the node. */
		if (socket && (socket->mark & MARK_MASK) != MARK_EGRESS_PROXY) {
			bpf_sk_release(socket);
			socket = NULL;
		}
	} else {
		return FAIL(trace, DROP_PROXY_PROTOCOL);
	}
	if (!socket)
		return FAIL(trace, DROP_PROXY_LOOKUP);
	error = bpf_sk_assign(ctx, socket, 0);
	bpf_sk_release(socket);
	if (error)
		return FAIL(trace, DROP_PROXY_ASSIGN);
	/* The inner frame has a MAC address of the other node. */
	if (FROM_TUNNEL)
		bpf_skb_change_type(ctx, PACKET_HOST);
	ctx->mark = port << 16 | MARK_TO_PROXY;
	trace->destination = bpf_ntohs((__be16)port);
	trace_packet(ctx, trace, TRACE_TO_PROXY, 0, NULL);
	return TC_ACT_OK;
}
