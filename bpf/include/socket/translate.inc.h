/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Translation of calls of one address family. IPv4 also serves IPv6 sockets with mapped addresses.
 */

/* Address, port and protocol of a call; translation happens in place. */
struct AF_FN(call) {
	AF_ADDRESS(address);
	__be16 port;
	__u8 proto;
};

static __always_inline void AF_FN(trace)(struct bpf_sock_addr *ctx, const call_t *call,
					 enum socket_call kind, __u8 point)
{
	struct socket_trace event = {
		.point = point,
		.flags = AF == 6 ? SOCKET_TRACE_IPV6 : 0,
		.port = bpf_ntohs(call->port),
	};

	if (!trace_wanted(kind))
		return;
	AF_TO_WORDS(event.address, call->address);
	trace_send(ctx, &event, call->proto);
}

/* Services that exist but must not be translated here. */
static __always_inline int AF_FN(bypasses)(struct bpf_sock_addr *ctx, const struct lb_service *svc,
					   const call_t *call)
{
	lb_skip_key_t skip = {.port = call->port};

	if (lb_delegates_if_local(svc) || (svc->flags2 & LB2_NAT46X64))
		return 1;
	if (needs_host_address(svc, AF_FN(is_loopback)(call->address),
			       options.external_ip_mitigation) &&
	    !ipcache_is_host(AF_FN(ipcache_lookup)(call->address)))
		return 1;
	if (options.local_redirect && (svc->flags2 & LB2_LOCAL_REDIRECT)) {
		AF_COPY(skip.address, call->address);
		skip.netns_cookie = bpf_get_netns_cookie(ctx);
		if (bpf_map_lookup_elem(&SKIP, &skip))
			return 1;
	}
	return 0;
}

/* Stores the original destination for recvmsg, getpeername and socket termination. */
static __always_inline int AF_FN(remember)(struct bpf_sock_addr *ctx, const call_t *asked,
					   AF_ADDRESS_IN address, __be16 port, __be16 rev_nat)
{
	lb_reverse_sk_key_t key = {
		.cookie = bpf_get_socket_cookie(ctx),
		.port = port,
	};
	lb_reverse_sk_t value = {
		.port = asked->port,
		.rev_nat_index = rev_nat,
	};
	const lb_reverse_sk_t *known;

	AF_COPY(key.address, address);
	AF_COPY(value.address, asked->address);
	known = bpf_map_lookup_elem(&REVERSE_SK, &key);
	if (known && AF_SAME(known->address, value.address) && known->port == value.port &&
	    known->rev_nat_index == value.rev_nat_index)
		return 0;
	if (bpf_map_update_elem(&REVERSE_SK, &key, &value, BPF_ANY)) {
		COUNT_SERVICE(METRIC_LB_REVERSE_UPDATE);
		return -ENOMEM;
	}
	/* The LRU map evicts entries that were never read first. */
	bpf_map_lookup_elem(&REVERSE_SK, &key);
	return 0;
}

/* Service to backend. */
static __always_inline int AF_FN(forward)(struct bpf_sock_addr *ctx, call_t *call,
					  enum socket_call kind)
{
	lb_service_key_t key = {.dport = call->port, .proto = call->proto};
	call_t to = {.proto = call->proto};
	lb_affinity_key_t client = {};
	const lb_backend_t *backend = NULL;
	const struct lb_service *svc;
	int host_netns, err;
	__u32 backend_id = 0;
	AF_ADDRESS(address);
	__be16 port;

	host_netns = socket_in_host_netns(ctx);
	if ((options.host_only && !host_netns) || !socket_proto_supported(call->proto))
		return UNTRANSLATED;

	AF_COPY(key.address, call->address);
	svc = AF_FN(master)(&key);
	if (!svc) {
		svc = AF_FN(surrogate)(&key, host_netns, 1);
		if (!svc)
			return UNTRANSLATED;
	}
	if (!svc->count && !lb_is_l7(svc))
		return no_backends(svc, options.reject_no_endpoints);
	AF_FN(trace)(ctx, call, kind, TRACE_PRE_FORWARD);
	if (AF_FN(bypasses)(ctx, svc, call))
		return UNTRANSLATED;

	if (lb_is_l7(svc)) {
		/* Packets of pods are redirected to the proxy at tc. */
		if (!host_netns)
			return UNTRANSLATED;
		AF_SET_LOOPBACK(address);
		port = (__be16)svc->backend_id;
	} else {
		if (svc->flags & LB_AFFINITY) {
			AF_FIRST(client.client) = bpf_get_netns_cookie(ctx);
			client.rev_nat_id = svc->rev_nat_index;
			client.flags = LB_AFFINITY_NETNS_COOKIE;
			backend = sticky_backend(&AFFINITIES, &BACKENDS, &client, svc, &backend_id);
		}
		if (!backend && svc->count) {
			key.backend_slot = choose_slot(ctx, key.proto, svc->count);
			backend = slot_backend(&SERVICES, &BACKENDS, &key, &backend_id);
		}
		if (!backend)
			return -EHOSTUNREACH;
		if (svc->flags & LB_AFFINITY)
			stick(&AFFINITIES, &client, backend_id);
		AF_COPY(address, backend->address);
		port = backend->port;
	}

	AF_COPY(to.address, address);
	to.port = port;
	AF_FN(trace)(ctx, &to, kind, TRACE_POST_FORWARD);
	err = AF_FN(remember)(ctx, call, address, port, svc->rev_nat_index);
	if (err)
		return err;
	*call = to;
	return TRANSLATED;
}

/* Backend back to service. */
static __always_inline int AF_FN(reverse)(struct bpf_sock_addr *ctx, call_t *call)
{
	lb_reverse_sk_key_t key = {
		.cookie = bpf_get_socket_cookie(ctx),
		.port = call->port,
	};
	lb_service_key_t service = {.proto = call->proto};
	const lb_reverse_sk_t *asked;
	const struct lb_service *svc;
	AF_ADDRESS(address);
	__be16 port, rev_nat;

	AF_FN(trace)(ctx, call, CALL_REVERSE, TRACE_PRE_REVERSE);
	AF_COPY(key.address, call->address);
	asked = bpf_map_lookup_elem(&REVERSE_SK, &key);
	if (!asked)
		return UNTRANSLATED;
	AF_COPY(address, asked->address);
	port = asked->port;
	rev_nat = asked->rev_nat_index;

	AF_COPY(service.address, address);
	service.dport = port;
	svc = AF_FN(master)(&service);
	if (!svc)
		svc = AF_FN(surrogate)(&service, socket_in_host_netns(ctx), 1);
	if (!still_served(svc, rev_nat)) {
		bpf_map_delete_elem(&REVERSE_SK, &key);
		COUNT_SERVICE(METRIC_LB_REVERSE_STALE);
		return UNTRANSLATED;
	}
	AF_COPY(call->address, address);
	call->port = port;
	AF_FN(trace)(ctx, call, CALL_REVERSE, TRACE_POST_REVERSE);
	return TRANSLATED;
}

/* Rejects sockets on ports that services serve on this node. */
static __always_inline int AF_FN(bind)(void *ctx, AF_ADDRESS_IN address, __be16 port, __u8 proto)
{
	lb_service_key_t key = {.dport = port, .proto = proto};
	const struct lb_service *svc;

	if (!socket_proto_supported(proto) || !socket_in_host_netns(ctx))
		return 0;
	AF_COPY(key.address, address);
	svc = AF_FN(master)(&key);
	if (!svc)
		svc = AF_FN(surrogate)(&key, 1, 0);
	return svc && lb_guards_port(svc) ? -EADDRINUSE : 0;
}

static __always_inline void AF_FN(release)(struct bpf_sock *ctx, AF_ADDRESS_IN address, __be16 port)
{
	lb_reverse_sk_key_t key = {
		.cookie = bpf_get_socket_cookie(ctx),
		.port = port,
	};

	AF_COPY(key.address, address);
	if (!bpf_map_delete_elem(&REVERSE_SK, &key))
		COUNT_SERVICE(METRIC_LB_REVERSE_DELETE);
}
