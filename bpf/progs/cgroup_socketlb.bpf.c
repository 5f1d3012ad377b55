/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Socket load balancing: services become backends when a socket connects, sends or is asked for its
 * peer, so that not a single packet needs translation. Attached to the root of the cgroup v2 tree.
 *
 * All programs are in one object, as they share maps and options and are replaced together.
 */
#include "socket/probe.h"
#include "socket/translate.h"

const volatile struct node_options options = {
	.nodeport_min = 30000,
	.nodeport_max = 32767,
	.ipv4 = 1,
	.ipv6 = 1,
	.nodeport = 1,
	.reject_no_endpoints = 1,
	.external_ip_mitigation = 1,
	.kernel_hz = 250,
};

static __always_inline void read4(struct bpf_sock_addr *ctx, struct call4 *call)
{
	call->address = ctx->user_ip4;
	call->port = (__be16)ctx->user_port;
	call->proto = (__u8)ctx->protocol;
}

static __always_inline void write4(struct bpf_sock_addr *ctx, const struct call4 *call)
{
	ctx->user_ip4 = call->address;
	ctx->user_port = call->port;
}

static __always_inline void read6(struct bpf_sock_addr *ctx, struct call6 *call)
{
	call->address[0] = ctx->user_ip6[0];
	call->address[1] = ctx->user_ip6[1];
	call->address[2] = ctx->user_ip6[2];
	call->address[3] = ctx->user_ip6[3];
	call->port = (__be16)ctx->user_port;
	call->proto = (__u8)ctx->protocol;
}

static __always_inline void write6(struct bpf_sock_addr *ctx, const struct call6 *call)
{
	ctx->user_ip6[0] = call->address[0];
	ctx->user_ip6[1] = call->address[1];
	ctx->user_ip6[2] = call->address[2];
	ctx->user_ip6[3] = call->address[3];
	ctx->user_port = call->port;
}

static __always_inline int translate4(struct bpf_sock_addr *ctx, enum socket_call kind)
{
	struct call4 call;
	int outcome;

	if (!options.ipv4)
		return SOCKET_PROCEED;
	read4(ctx, &call);
	outcome = kind == CALL_REVERSE ? reverse4(ctx, &call) : forward4(ctx, &call, kind);
	if (outcome == TRANSLATED)
		write4(ctx, &call);
	return call_verdict(kind, outcome);
}

/* IPv6 sockets talk IPv4 through mapped addresses. */
static __always_inline int translate_mapped(struct bpf_sock_addr *ctx, const struct call6 *mapped,
					    enum socket_call kind)
{
	struct call4 call = {
		.address = mapped->address[3],
		.port = mapped->port,
		.proto = mapped->proto,
	};
	int outcome;

	outcome = kind == CALL_REVERSE ? reverse4(ctx, &call) : forward4(ctx, &call, kind);
	if (outcome == TRANSLATED) {
		ctx->user_ip6[3] = call.address;
		ctx->user_port = call.port;
	}
	return call_verdict(kind, outcome);
}

static __always_inline int translate6(struct bpf_sock_addr *ctx, enum socket_call kind)
{
	struct call6 call;
	int outcome;

	read6(ctx, &call);
	if (is_mapped4(call.address))
		return options.ipv4 ? translate_mapped(ctx, &call, kind) : SOCKET_PROCEED;
	if (!options.ipv6)
		return SOCKET_PROCEED;
	outcome = kind == CALL_REVERSE ? reverse6(ctx, &call) : forward6(ctx, &call, kind);
	if (outcome == TRANSLATED)
		write6(ctx, &call);
	return call_verdict(kind, outcome);
}

SEC("cgroup/connect4")
int cil_sock4_connect(struct bpf_sock_addr *ctx)
{
	return connect_probe(ctx) ? SOCKET_PROCEED : translate4(ctx, CALL_CONNECT);
}

SEC("cgroup/sendmsg4")
int cil_sock4_sendmsg(struct bpf_sock_addr *ctx)
{
	return translate4(ctx, CALL_SENDMSG);
}

SEC("cgroup/recvmsg4")
int cil_sock4_recvmsg(struct bpf_sock_addr *ctx)
{
	return translate4(ctx, CALL_REVERSE);
}

SEC("cgroup/getpeername4")
int cil_sock4_getpeername(struct bpf_sock_addr *ctx)
{
	return translate4(ctx, CALL_REVERSE);
}

SEC("cgroup/post_bind4")
int cil_sock4_post_bind(struct bpf_sock *ctx)
{
	/* The port is in host order here. */
	__be16 port = bpf_htons((__u16)ctx->src_port);

	if (!options.ipv4)
		return SOCKET_PROCEED;
	return socket_verdict(bind4(ctx, ctx->src_ip4, port, (__u8)ctx->protocol));
}

SEC("cgroup/connect6")
int cil_sock6_connect(struct bpf_sock_addr *ctx)
{
	return connect_probe(ctx) ? SOCKET_PROCEED : translate6(ctx, CALL_CONNECT);
}

SEC("cgroup/sendmsg6")
int cil_sock6_sendmsg(struct bpf_sock_addr *ctx)
{
	return translate6(ctx, CALL_SENDMSG);
}

SEC("cgroup/recvmsg6")
int cil_sock6_recvmsg(struct bpf_sock_addr *ctx)
{
	return translate6(ctx, CALL_REVERSE);
}

SEC("cgroup/getpeername6")
int cil_sock6_getpeername(struct bpf_sock_addr *ctx)
{
	return translate6(ctx, CALL_REVERSE);
}

SEC("cgroup/post_bind6")
int cil_sock6_post_bind(struct bpf_sock *ctx)
{
	__be32 address[4] = {
		ctx->src_ip6[0],
		ctx->src_ip6[1],
		ctx->src_ip6[2],
		ctx->src_ip6[3],
	};
	__be16 port = bpf_htons((__u16)ctx->src_port);
	__u8 proto = (__u8)ctx->protocol;

	if (is_mapped4(address)) {
		if (!options.ipv4)
			return SOCKET_PROCEED;
		return socket_verdict(bind4(ctx, address[3], port, proto));
	}
	if (!options.ipv6)
		return SOCKET_PROCEED;
	return socket_verdict(bind6(ctx, address, port, proto));
}

/* The address that a probe binds to is the backend. */
SEC("cgroup/bind4")
int cil_sock4_pre_bind(struct bpf_sock_addr *ctx)
{
	int outcome;

	if (!options.ipv4 || !is_probe(ctx))
		return SOCKET_PROCEED;
	outcome = bind_probe4(ctx, ctx->user_ip4);
	if (outcome)
		return socket_verdict(outcome);
	ctx->user_ip4 = 0;
	ctx->user_port = 0;
	return SOCKET_PROCEED;
}

SEC("cgroup/bind6")
int cil_sock6_pre_bind(struct bpf_sock_addr *ctx)
{
	struct call6 call;
	int outcome, mapped;

	if (!is_probe(ctx))
		return SOCKET_PROCEED;
	read6(ctx, &call);
	mapped = is_mapped4(call.address);
	if (mapped ? !options.ipv4 : !options.ipv6)
		return SOCKET_PROCEED;
	outcome = mapped ? bind_probe4(ctx, call.address[3]) : bind_probe6(ctx, call.address);
	if (outcome)
		return socket_verdict(outcome);
	/* A mapped address stays one, of any interface. */
	if (!mapped) {
		ctx->user_ip6[0] = 0;
		ctx->user_ip6[1] = 0;
		ctx->user_ip6[2] = 0;
	}
	ctx->user_ip6[3] = 0;
	ctx->user_port = 0;
	return SOCKET_PROCEED;
}

SEC("cgroup/sock_release")
int cil_sock_release(struct bpf_sock *ctx)
{
	volatile __u32 raw_port = ctx->dst_port; /* kernels before 5.18 only allow 32-bit reads */
	__be16 port = (__be16)raw_port;
	__be32 address[4];

	/* Nothing is remembered of sockets that are not translated. */
	if (!port || (options.host_only && !socket_in_host_netns(ctx)))
		return SOCKET_PROCEED;
	if (ctx->family == AF_INET) {
		if (options.ipv4)
			release4(ctx, ctx->dst_ip4, port);
		return SOCKET_PROCEED;
	}
	if (ctx->family != AF_INET6)
		return SOCKET_PROCEED;
	address[0] = ctx->dst_ip6[0];
	address[1] = ctx->dst_ip6[1];
	address[2] = ctx->dst_ip6[2];
	address[3] = ctx->dst_ip6[3];
	if (is_mapped4(address)) {
		if (options.ipv4)
			release4(ctx, address[3], port);
	} else if (options.ipv6) {
		release6(ctx, address, port);
	}
	return SOCKET_PROCEED;
}

/* The kernel wants "GPL" in it for helpers that only GPL-compatible programs may call. */
char LICENSE[] SEC("license") = "Dual BSD/GPL";
