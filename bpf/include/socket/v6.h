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
static __always_inline const struct lb_service *surrogate6(struct lb6_service_key *key,
							   int host_netns, int peers)
{
	int in_range = port_in_nodeport_range(key->dport);
	int loopback = loopback6(key->address);

	if (!options.nodeport || (!in_range && !peers))
		return NULL;
	if ((!loopback || !host_netns) &&
	    !has_surrogates(ipcache_lookup6(key->address), in_range, peers))
		return NULL;
	__builtin_memset(key->address, 0, sizeof(key->address));
	return fitting_surrogate(master6(key), in_range, loopback);
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

	if (lb_delegates_if_local(svc) || (svc->flags2 & LB2_NAT46X64))
		return 1;
	if (needs_host_address(svc, loopback6(call->address)) &&
	    !ipcache_is_host(ipcache_lookup6(call->address)))
		return 1;
	if (options.local_redirect && (svc->flags2 & LB2_LOCAL_REDIRECT)) {
		copy6(skip.address, call->address);
		skip.netns_cookie = bpf_get_netns_cookie(ctx);
		if (bpf_map_lookup_elem(&cilium_skip_lb6, &skip))
			return 1;
	}
	return 0;
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
		svc = surrogate6(&key, host_netns, 1);
		if (!svc)
			return UNTRANSLATED;
	}
	if (!svc->count && !lb_is_l7(svc))
		return unserved(svc);
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
			backend = sticky_backend(&cilium_lb6_affinity, &cilium_lb6_backends_v3,
						 &client, svc, &backend_id);
		}
		if (!backend && svc->count) {
			key.backend_slot = choose_slot(ctx, key.proto, svc->count);
			backend = slot_backend(&cilium_lb6_services_v2, &cilium_lb6_backends_v3,
					       &key, &backend_id);
		}
		if (!backend)
			return -EHOSTUNREACH;
		if (svc->flags & LB_AFFINITY)
			stick(&cilium_lb6_affinity, &client, backend_id);
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
		svc = surrogate6(&service, socket_in_host_netns(ctx), 1);
	if (!still_served(svc, rev_nat)) {
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
		svc = surrogate6(&key, 1, 0);
	return svc && lb_guards_port(svc) ? -EADDRINUSE : 0;
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
