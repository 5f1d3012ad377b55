/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Health checker sockets: marked, and bound to the probed backend. */
#ifndef SOCKET_PROBE_H
#define SOCKET_PROBE_H

#include <linux/errno.h>

#include "../lb/health.h"
#include "common.h"

#ifndef SOL_SOCKET
#define SOL_SOCKET 1
#endif
#ifndef SO_MARK
#define SO_MARK 36
#endif

static __always_inline int is_probe(struct bpf_sock_addr *ctx)
{
	struct bpf_sock *socket;

	if (!options.packet.health_probes)
		return 0;
	socket = ctx->sk;
	return socket && socket->mark == MARK_PROBE && socket_in_host_netns(ctx);
}

/* Handles the connect call of a probe: packets find the backend by the socket, and the mark is
 * cleared. Returns 1 for a probe.
 */
static __always_inline int connect_probe(struct bpf_sock_addr *ctx)
{
	__u32 none = 0;

	if (!is_probe(ctx))
		return 0;
	bpf_setsockopt(ctx, SOL_SOCKET, SO_MARK, &none, sizeof(none));
	return 1;
}

/* Stores the backend that a probe binds to. Returns 0, or a negative errno. */
static __always_inline int bind_probe4(struct bpf_sock_addr *ctx, __be32 address)
{
	struct lb4_backend backend = {
		.address = address,
		.port = (__be16)ctx->user_port,
		.proto = (__u8)ctx->protocol,
	};
	__u64 cookie = bpf_get_socket_cookie(ctx);

	return bpf_map_update_elem(&cilium_lb4_health, &cookie, &backend, BPF_ANY) ? -ENOBUFS : 0;
}

static __always_inline int bind_probe6(struct bpf_sock_addr *ctx, const __be32 *address)
{
	struct lb6_backend backend = {
		.port = (__be16)ctx->user_port,
		.proto = (__u8)ctx->protocol,
	};
	__u64 cookie = bpf_get_socket_cookie(ctx);

	copy6(backend.address, address);
	return bpf_map_update_elem(&cilium_lb6_health, &cookie, &backend, BPF_ANY) ? -ENOBUFS : 0;
}

#endif /* SOCKET_PROBE_H */
