/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Translation of IPv4 calls, and of IPv6 calls with mapped addresses. */
#ifndef SOCKET_V4_H
#define SOCKET_V4_H

#include "common.h"

/* Address, port and protocol of a call; translation happens in place. */
struct call4 {
	__be32 address;
	__be16 port;
	__u8 proto;
};

/* Master entry for traffic from this node: the internal scope where there are two. */
static __always_inline const struct lb_service *master4(struct lb4_service_key *key)
{
	const struct lb_service *svc;

	key->backend_slot = 0;
	key->scope = LB_SCOPE_EXTERNAL;
	svc = bpf_map_lookup_elem(&cilium_lb4_services_v2, key);
	if (svc && (svc->flags2 & LB2_TWO_SCOPES)) {
		key->scope = LB_SCOPE_INTERNAL;
		svc = bpf_map_lookup_elem(&cilium_lb4_services_v2, key);
	}
	return svc;
}

/* Surrogate entry of a node address. With peers, NodePorts of other nodes count, and HostPorts. */
static __always_inline const struct lb_service *surrogate4(struct lb4_service_key *key,
							   int host_netns, int peers)
{
	int in_range = port_in_nodeport_range(key->dport);
	int loopback = loopback4(key->address);

	if (!options.nodeport || (!in_range && !peers))
		return NULL;
	if ((!loopback || !host_netns) &&
	    !has_surrogates(ipcache_lookup4(key->address), in_range, peers))
		return NULL;
	key->address = 0;
	return fitting_surrogate(master4(key), in_range, loopback);
}

static __always_inline void trace4(struct bpf_sock_addr *ctx, const struct call4 *call,
				   enum socket_call kind, __u8 point)
{
	struct socket_trace event = {.point = point, .port = bpf_ntohs(call->port)};

	if (!trace_wanted(kind))
		return;
	event.address[0] = call->address;
	trace_send(ctx, &event, call->proto);
}

/* Services that must not be translated here, though they were found. */
static __always_inline int left_alone4(struct bpf_sock_addr *ctx, const struct lb_service *svc,
				       const struct call4 *call)
{
	struct lb4_skip_key skip = {.address = call->address, .port = call->port};

	if (lb_delegates_if_local(svc) || (svc->flags2 & LB2_NAT46X64))
		return 1;
	if (needs_host_address(svc, loopback4(call->address)) &&
	    !ipcache_is_host(ipcache_lookup4(call->address)))
		return 1;
	if (options.local_redirect && (svc->flags2 & LB2_LOCAL_REDIRECT)) {
		skip.netns_cookie = bpf_get_netns_cookie(ctx);
		if (bpf_map_lookup_elem(&cilium_skip_lb4, &skip))
			return 1;
	}
	return 0;
}

/* Remembers what the application asked for, for recvmsg, getpeername and socket termination. */
static __always_inline int remember4(struct bpf_sock_addr *ctx, const struct call4 *asked,
				     __be32 address, __be16 port, __be16 rev_nat)
{
	struct lb4_reverse_sk_key key = {
		.cookie = bpf_get_socket_cookie(ctx),
		.address = address,
		.port = port,
	};
	struct lb4_reverse_sk value = {
		.address = asked->address,
		.port = asked->port,
		.rev_nat_index = rev_nat,
	};
	const struct lb4_reverse_sk *known = bpf_map_lookup_elem(&cilium_lb4_reverse_sk, &key);

	if (known && known->address == value.address && known->port == value.port &&
	    known->rev_nat_index == value.rev_nat_index)
		return 0;
	if (bpf_map_update_elem(&cilium_lb4_reverse_sk, &key, &value, BPF_ANY)) {
		COUNT_SERVICE(METRIC_LB_REVERSE_UPDATE);
		return -ENOMEM;
	}
	/* Entries that were never read are the first the LRU map throws out. */
	bpf_map_lookup_elem(&cilium_lb4_reverse_sk, &key);
	return 0;
}

/* Service to backend. */
static __always_inline int forward4(struct bpf_sock_addr *ctx, struct call4 *call,
				    enum socket_call kind)
{
	struct lb4_service_key key = {
		.address = call->address,
		.dport = call->port,
		.proto = call->proto,
	};
	struct call4 to = {.proto = call->proto};
	struct lb4_affinity_key client = {};
	const struct lb4_backend *backend = NULL;
	const struct lb_service *svc;
	int host_netns, err;
	__u32 backend_id = 0;
	__be32 address;
	__be16 port;

	host_netns = socket_in_host_netns(ctx);
	if ((options.host_only && !host_netns) || !socket_proto_supported(call->proto))
		return UNTRANSLATED;

	svc = master4(&key);
	if (!svc) {
		svc = surrogate4(&key, host_netns, 1);
		if (!svc)
			return UNTRANSLATED;
	}
	if (!svc->count && !lb_is_l7(svc))
		return unserved(svc);
	trace4(ctx, call, kind, TRACE_PRE_FORWARD);
	if (left_alone4(ctx, svc, call))
		return UNTRANSLATED;

	if (lb_is_l7(svc)) {
		/* Pods' packets are redirected to the proxy on their way. */
		if (!host_netns)
			return UNTRANSLATED;
		address = bpf_htonl(0x7f000001);
		port = (__be16)svc->backend_id;
	} else {
		if (svc->flags & LB_AFFINITY) {
			client.client = bpf_get_netns_cookie(ctx);
			client.rev_nat_id = svc->rev_nat_index;
			client.flags = LB_AFFINITY_NETNS_COOKIE;
			backend = sticky_backend(&cilium_lb4_affinity, &cilium_lb4_backends_v3,
						 &client, svc, &backend_id);
		}
		if (!backend && svc->count) {
			key.backend_slot = choose_slot(ctx, key.proto, svc->count);
			backend = slot_backend(&cilium_lb4_services_v2, &cilium_lb4_backends_v3,
					       &key, &backend_id);
		}
		if (!backend)
			return -EHOSTUNREACH;
		if (svc->flags & LB_AFFINITY)
			stick(&cilium_lb4_affinity, &client, backend_id);
		address = backend->address;
		port = backend->port;
	}

	to.address = address;
	to.port = port;
	trace4(ctx, &to, kind, TRACE_POST_FORWARD);
	err = remember4(ctx, call, address, port, svc->rev_nat_index);
	if (err)
		return err;
	*call = to;
	return TRANSLATED;
}

/* Backend back to service. */
static __always_inline int reverse4(struct bpf_sock_addr *ctx, struct call4 *call)
{
	struct lb4_reverse_sk_key key = {
		.cookie = bpf_get_socket_cookie(ctx),
		.address = call->address,
		.port = call->port,
	};
	struct lb4_service_key service = {.proto = call->proto};
	const struct lb4_reverse_sk *asked;
	const struct lb_service *svc;
	__be32 address;
	__be16 port, rev_nat;

	trace4(ctx, call, CALL_REVERSE, TRACE_PRE_REVERSE);
	asked = bpf_map_lookup_elem(&cilium_lb4_reverse_sk, &key);
	if (!asked)
		return UNTRANSLATED;
	address = asked->address;
	port = asked->port;
	rev_nat = asked->rev_nat_index;

	service.address = address;
	service.dport = port;
	svc = master4(&service);
	if (!svc)
		svc = surrogate4(&service, socket_in_host_netns(ctx), 1);
	if (!still_served(svc, rev_nat)) {
		bpf_map_delete_elem(&cilium_lb4_reverse_sk, &key);
		COUNT_SERVICE(METRIC_LB_REVERSE_STALE);
		return UNTRANSLATED;
	}
	call->address = address;
	call->port = port;
	trace4(ctx, call, CALL_REVERSE, TRACE_POST_REVERSE);
	return TRANSLATED;
}

/* Sockets must not take ports that services serve on this node. */
static __always_inline int bind4(void *ctx, __be32 address, __be16 port, __u8 proto)
{
	struct lb4_service_key key = {
		.address = address,
		.dport = port,
		.proto = proto,
	};
	const struct lb_service *svc;

	if (!socket_proto_supported(proto) || !socket_in_host_netns(ctx))
		return 0;
	svc = master4(&key);
	if (!svc)
		svc = surrogate4(&key, 1, 0);
	return svc && lb_guards_port(svc) ? -EADDRINUSE : 0;
}

static __always_inline void release4(struct bpf_sock *ctx, __be32 address, __be16 port)
{
	struct lb4_reverse_sk_key key = {
		.cookie = bpf_get_socket_cookie(ctx),
		.address = address,
		.port = port,
	};

	if (!bpf_map_delete_elem(&cilium_lb4_reverse_sk, &key))
		COUNT_SERVICE(METRIC_LB_REVERSE_DELETE);
}

#endif /* SOCKET_V4_H */
