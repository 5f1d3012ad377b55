/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Translation of IPv6 calls. */
#ifndef SOCKET_V6_H
#define SOCKET_V6_H

#include "common.h"

/* Address, port and protocol of a call; translation happens in place. */
struct call6 {
	__be32 address[4];
	__be16 port;
	__u8 proto;
};

static __always_inline void copy6(__be32 *to, const __be32 *from)
{
	to[0] = from[0];
	to[1] = from[1];
	to[2] = from[2];
	to[3] = from[3];
}

static __always_inline int same6(const __be32 *one, const __be32 *other)
{
	return one[0] == other[0] && one[1] == other[1] && one[2] == other[2] && one[3] == other[3];
}

static __always_inline int loopback6(const __be32 *address)
{
	return !address[0] && !address[1] && !address[2] && address[3] == bpf_htonl(1);
}

/* An IPv4 address in an IPv6 socket: ::ffff:a.b.c.d */
static __always_inline int mapped4(const __be32 *address)
{
	return !address[0] && !address[1] && address[2] == bpf_htonl(0xffff);
}

/* Master entry for traffic from this node: the internal scope where there are two. */
static __always_inline const struct lb_service *master6(struct lb6_service_key *key)
{
	const struct lb_service *svc;

	key->backend_slot = 0;
	key->scope = LB_SCOPE_EXTERNAL;
	svc = bpf_map_lookup_elem(&cilium_lb6_services_v2, key);
	if (svc && (svc->flags2 & LB2_TWO_SCOPES)) {
		key->scope = LB_SCOPE_INTERNAL;
		svc = bpf_map_lookup_elem(&cilium_lb6_services_v2, key);
	}
	return svc;
}

/* Surrogate entry of a node address. With peers, NodePorts of other nodes count, and HostPorts. */
static __always_inline const struct lb_service *wildcard6(struct lb6_service_key *key,
							  int host_netns, int peers)
{
	int in_range = port_in_nodeport_range(key->dport);
	int loopback = loopback6(key->address);
	const struct ipcache_value *peer;
	const struct lb_service *svc;

	if (!options.nodeport || (!in_range && !peers))
		return NULL;
	if (!loopback || !host_netns) {
		peer = ipcache_lookup6(key->address);
		if (!ipcache_is_host(peer) && !(peers && in_range && ipcache_is_peer_node(peer)))
			return NULL;
	}
	__builtin_memset(key->address, 0, sizeof(key->address));
	svc = master6(key);
	if (!svc)
		return NULL;
	if (in_range)
		return svc->flags & LB_NODE_PORT ? svc : NULL;
	if (!lb_is_hostport(svc) || ((svc->flags2 & LB2_LOOPBACK) && !loopback))
		return NULL;
	return svc;
}

static __always_inline void trace6(struct bpf_sock_addr *ctx, const struct call6 *call,
				   enum socket_call kind, __u8 point)
{
	struct socket_trace event = {
		.point = point,
		.flags = SOCKET_TRACE_IPV6,
		.port = bpf_ntohs(call->port),
	};

	if (!trace_wanted(kind))
		return;
	copy6(event.address, call->address);
	trace_send(ctx, &event, call->proto);
}

/* Services that must not be translated here, though they were found. */
static __always_inline int left_alone6(struct bpf_sock_addr *ctx, const struct lb_service *svc,
				       const struct call6 *call)
{
	struct lb6_skip_key skip = {.port = call->port};
	int foreign;

	if (lb_delegates_if_local(svc) || (svc->flags2 & LB2_NAT46X64))
		return 1;
	foreign = (options.external_ip_mitigation && (svc->flags & LB_EXTERNAL_IP)) ||
		  (lb_is_hostport(svc) && !loopback6(call->address));
	if (foreign && !ipcache_is_host(ipcache_lookup6(call->address)))
		return 1;
	if (options.local_redirect && (svc->flags2 & LB2_LOCAL_REDIRECT)) {
		copy6(skip.address, call->address);
		skip.netns_cookie = bpf_get_netns_cookie(ctx);
		if (bpf_map_lookup_elem(&cilium_skip_lb6, &skip))
			return 1;
	}
	return 0;
}

/* The backend that the network namespace talked to before, if it is still one of the service's. */
static __always_inline const struct lb6_backend *
sticky6(const struct lb6_affinity_key *key, const struct lb_service *svc, __u32 *backend_id)
{
	const struct lb_affinity *seen = bpf_map_lookup_elem(&cilium_lb6_affinity, key);
	const struct lb6_backend *backend;
	__u32 id;

	if (!seen)
		return NULL;
	id = seen->backend_id;
	if (seen->last_used + affinity_timeout(svc) > affinity_now() &&
	    affinity_matches(id, svc->rev_nat_index)) {
		backend = bpf_map_lookup_elem(&cilium_lb6_backends_v3, &id);
		if (backend) {
			*backend_id = id;
			return backend;
		}
	}
	bpf_map_delete_elem(&cilium_lb6_affinity, key);
	return NULL;
}

static __always_inline void stick6(const struct lb6_affinity_key *key, __u32 backend_id)
{
	struct lb_affinity *seen = bpf_map_lookup_elem(&cilium_lb6_affinity, key);
	struct lb_affinity value = {.last_used = affinity_now(), .backend_id = backend_id};

	if (seen && seen->backend_id == backend_id)
		seen->last_used = value.last_used;
	else
		bpf_map_update_elem(&cilium_lb6_affinity, key, &value, BPF_ANY);
}

/* Backend in the slot that chance or the socket chooses. */
static __always_inline const struct lb6_backend *chosen6(struct bpf_sock_addr *ctx,
							 struct lb6_service_key *key,
							 const struct lb_service *svc,
							 __u32 *backend_id)
{
	const struct lb6_backend *backend;
	const struct lb_service *slot;
	__u16 count = svc->count;

	if (!count)
		return NULL;
	key->backend_slot = choose_slot(ctx, key->proto, count);
	slot = bpf_map_lookup_elem(&cilium_lb6_services_v2, key);
	if (!slot) {
		COUNT_SERVICE(METRIC_LB_NO_BACKEND_SLOT);
		return NULL;
	}
	*backend_id = slot->backend_id;
	backend = bpf_map_lookup_elem(&cilium_lb6_backends_v3, backend_id);
	if (!backend)
		COUNT_SERVICE(METRIC_LB_NO_BACKEND);
	return backend;
}

/* Remembers what the application asked for, for recvmsg, getpeername and socket termination. */
static __always_inline int remember6(struct bpf_sock_addr *ctx, const struct call6 *asked,
				     const __be32 *address, __be16 port, __be16 rev_nat)
{
	struct lb6_reverse_sk_key key = {
		.cookie = bpf_get_socket_cookie(ctx),
		.port = port,
	};
	struct lb6_reverse_sk value = {
		.port = asked->port,
		.rev_nat_index = rev_nat,
	};
	const struct lb6_reverse_sk *known;

	copy6(key.address, address);
	copy6(value.address, asked->address);
	known = bpf_map_lookup_elem(&cilium_lb6_reverse_sk, &key);
	if (known && same6(known->address, value.address) && known->port == value.port &&
	    known->rev_nat_index == value.rev_nat_index)
		return 0;
	if (bpf_map_update_elem(&cilium_lb6_reverse_sk, &key, &value, BPF_ANY)) {
		COUNT_SERVICE(METRIC_LB_REVERSE_UPDATE);
		return -ENOMEM;
	}
	/* Entries that were never read are the first the LRU map throws out. */
	bpf_map_lookup_elem(&cilium_lb6_reverse_sk, &key);
	return 0;
}

/* Service to backend. */
static __always_inline int forward6(struct bpf_sock_addr *ctx, struct call6 *call,
				    enum socket_call kind)
{
	struct lb6_service_key key = {.dport = call->port, .proto = call->proto};
	struct call6 to = {.proto = call->proto};
	struct lb6_affinity_key client = {};
	const struct lb6_backend *backend = NULL;
	const struct lb_service *svc;
	int host_netns, err;
	__u32 backend_id = 0;
	__be32 address[4] = {};
	__be16 port;

	host_netns = socket_in_host_netns(ctx);
	if ((options.host_only && !host_netns) || !socket_proto_supported(call->proto))
		return UNTRANSLATED;

	copy6(key.address, call->address);
	svc = master6(&key);
	if (!svc) {
		svc = wildcard6(&key, host_netns, 1);
		if (!svc)
			return UNTRANSLATED;
	}
	if (!svc->count && !lb_is_l7(svc)) {
		if (options.reject_no_endpoints || lb_policy_is_local(svc))
			return -EHOSTUNREACH;
		return UNTRANSLATED;
	}
	trace6(ctx, call, kind, TRACE_PRE_FORWARD);
	if (left_alone6(ctx, svc, call))
		return UNTRANSLATED;

	if (lb_is_l7(svc)) {
		/* Pods' packets are redirected to the proxy on their way. */
		if (!host_netns)
			return UNTRANSLATED;
		address[3] = bpf_htonl(1);
		port = (__be16)svc->backend_id;
	} else {
		if (svc->flags & LB_AFFINITY) {
			client.client[0] = bpf_get_netns_cookie(ctx);
			client.rev_nat_id = svc->rev_nat_index;
			client.flags = LB_AFFINITY_NETNS_COOKIE;
			backend = sticky6(&client, svc, &backend_id);
		}
		if (!backend)
			backend = chosen6(ctx, &key, svc, &backend_id);
		if (!backend)
			return -EHOSTUNREACH;
		if (svc->flags & LB_AFFINITY)
			stick6(&client, backend_id);
		copy6(address, backend->address);
		port = backend->port;
	}

	copy6(to.address, address);
	to.port = port;
	trace6(ctx, &to, kind, TRACE_POST_FORWARD);
	err = remember6(ctx, call, address, port, svc->rev_nat_index);
	if (err)
		return err;
	*call = to;
	return TRANSLATED;
}

/* Backend back to service. */
static __always_inline int reverse6(struct bpf_sock_addr *ctx, struct call6 *call)
{
	struct lb6_reverse_sk_key key = {
		.cookie = bpf_get_socket_cookie(ctx),
		.port = call->port,
	};
	struct lb6_service_key service = {.proto = call->proto};
	const struct lb6_reverse_sk *asked;
	const struct lb_service *svc;
	__be32 address[4];
	__be16 port, rev_nat;

	trace6(ctx, call, CALL_REVERSE, TRACE_PRE_REVERSE);
	copy6(key.address, call->address);
	asked = bpf_map_lookup_elem(&cilium_lb6_reverse_sk, &key);
	if (!asked)
		return UNTRANSLATED;
	copy6(address, asked->address);
	port = asked->port;
	rev_nat = asked->rev_nat_index;

	copy6(service.address, address);
	service.dport = port;
	svc = master6(&service);
	if (!svc)
		svc = wildcard6(&service, socket_in_host_netns(ctx), 1);
	if (!svc || svc->rev_nat_index != rev_nat || (!svc->count && !lb_is_l7(svc))) {
		bpf_map_delete_elem(&cilium_lb6_reverse_sk, &key);
		COUNT_SERVICE(METRIC_LB_REVERSE_STALE);
		return UNTRANSLATED;
	}
	copy6(call->address, address);
	call->port = port;
	trace6(ctx, call, CALL_REVERSE, TRACE_POST_REVERSE);
	return TRANSLATED;
}

/* Sockets must not take ports that services serve on this node. */
static __always_inline int bind6(void *ctx, const __be32 *address, __be16 port, __u8 proto)
{
	struct lb6_service_key key = {.dport = port, .proto = proto};
	const struct lb_service *svc;

	if (!socket_proto_supported(proto) || !socket_in_host_netns(ctx))
		return 0;
	copy6(key.address, address);
	svc = master6(&key);
	if (!svc)
		svc = wildcard6(&key, 1, 0);
	if (!svc || !(svc->flags & (LB_NODE_PORT | LB_EXTERNAL_IP | LB_LOAD_BALANCER)) ||
	    lb_is_l7(svc) || lb_delegates_if_local(svc))
		return 0;
	return -EADDRINUSE;
}

static __always_inline void release6(struct bpf_sock *ctx, const __be32 *address, __be16 port)
{
	struct lb6_reverse_sk_key key = {
		.cookie = bpf_get_socket_cookie(ctx),
		.port = port,
	};

	copy6(key.address, address);
	if (!bpf_map_delete_elem(&cilium_lb6_reverse_sk, &key))
		COUNT_SERVICE(METRIC_LB_REVERSE_DELETE);
}

#endif /* SOCKET_V6_H */
