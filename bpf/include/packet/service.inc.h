/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Services of one address family. */

static __always_inline const struct AF_JOIN(lb, _backend) *
	AF_FN(random_backend)(const struct lb_service *svc, struct AF_JOIN(lb, _service_key) * key,
			      __u32 *backend_id)
{
	const struct lb_service *slot;

	if (!svc->count)
		return NULL;
	key->backend_slot = slot_of(bpf_get_prandom_u32(), svc->count);
	slot = bpf_map_lookup_elem(&SERVICES, key);
	if (!slot)
		return NULL;
	*backend_id = slot->backend_id;
	return bpf_map_lookup_elem(&BACKENDS, backend_id);
}

/* The service's backends are chosen by a table. */
static __always_inline int AF_FN(has_table)(const struct AF_FN(work) * work)
{
	if (options.packet.lb_per_service && lb_algorithm(&work->service))
		return lb_algorithm(&work->service) == LB_ALGORITHM_MAGLEV;
	/* Pods, which may be backends themselves, get one at random. */
	return options.packet.maglev && !work->translation.loopback;
}

/* The backend that the table of the service has for this packet: that of all nodes, whichever the
 * packet came to. NULL if there is no table.
 */
static __always_inline const struct AF_JOIN(lb, _backend) *
	AF_FN(table_backend)(const struct AF_FN(work) * work, __u32 *backend_id)
{
	const struct AF_FN(packet) *packet = &work->packet;
	__be16 service = work->service.rev_nat_index, sport = packet->sport;
	const __u32 *table;
	__u32 zero = 0;
	__u64 index;
	void *tables;

	tables = bpf_map_lookup_elem(&TABLES, &service);
	if (!tables)
		return NULL;
	table = bpf_map_lookup_elem(tables, &zero);
	if (!table)
		return NULL;
	/* All connections of a client go to one backend. */
	if (work->service.flags & LB_AFFINITY)
		sport = 0;
	index = AF_FN(packet_hash)(packet->saddr, sport, packet->dport, packet->proto,
				   options.packet.AF_FN(maglev_seed));
	index %= options.packet.maglev_size;
	/* The verifier does not follow a remainder. */
	OPAQUE(index);
	if (index >= options.packet.maglev_size)
		return NULL;
	*backend_id = table[index];
	return bpf_map_lookup_elem(&BACKENDS, backend_id);
}

/* Tells which slot of a service was chosen, and what is in it: a backend or, if it is NULL, the id
 * of none; 0 if there is no such slot.
 */
static __noinline void AF_FN(debug_slot)(CTX *ctx, const struct AF_FN(work) * work,
					 const struct AF_JOIN(lb, _backend) * backend,
					 __u32 backend_id)
{
	const struct AF_JOIN(lb, _service_key) *key = &work->key;
	const struct path *path = &work->path;
	__u16 slot = key->backend_slot;
	__be16 port = key->dport;

	debug_output(ctx, path, AF_FN(DEBUG_SLOT), slot, port, 0);
	if (backend)
		debug_output(ctx, path, AF_FN(DEBUG_BACKEND), AF_LAST(backend->address),
			     backend->port, 0);
	else if (backend_id)
		debug_output(ctx, path, AF_FN(DEBUG_NO_BACKEND), backend_id, 0, 0);
	else
		debug_output(ctx, path, AF_FN(DEBUG_NO_SLOT), slot, port, 0);
}

/* Tells whether there is a service at the destination. */
static __noinline void AF_FN(debug_frontend)(CTX *ctx, const struct AF_FN(work) * work, int found)
{
	const struct AF_FN(packet) *packet = &work->packet;

	debug_output(ctx, &work->path, AF_FN(DEBUG_FRONTEND), AF_LAST(packet->daddr), packet->dport,
		     0);
	if (found)
		return;
#if AF == 4
	debug_output(ctx, &work->path, DEBUG_NO_FRONTEND4, 0, 0, 0);
#else
	debug_output(ctx, &work->path, DEBUG_NO_FRONTEND6, packet->daddr[1], packet->daddr[2], 0);
#endif
}

/* A backend for a flow that has none: the client's, if the service says so. */
static __always_inline const struct AF_JOIN(lb, _backend) *
	AF_FN(choose_backend)(CTX *ctx, struct AF_FN(work) * work, __u32 *backend_id)
{
	const struct AF_JOIN(lb, _backend) *backend = NULL;
	const struct lb_service *svc = &work->service;

	if (svc->flags & LB_AFFINITY)
		backend = sticky_backend(&AFFINITIES, &BACKENDS, &work->client, svc, backend_id);
	if (!backend && AF_FN(has_table)(work))
		backend = AF_FN(table_backend)(work, backend_id);
	if (backend)
		return backend;
	*backend_id = 0;
	backend = AF_FN(random_backend)(&work->service, &work->key, backend_id);
	if (DEBUGS())
		AF_FN(debug_slot)(ctx, work, backend, *backend_id);
	return backend;
}

/* Backend of a new flow, which is remembered; the one of `backend_id`, if that takes new flows. */
static __always_inline const struct AF_JOIN(lb, _backend) *
	AF_FN(new_backend)(CTX *ctx, struct AF_FN(work) * work, __u32 *backend_id)
{
	const struct AF_JOIN(lb, _backend) *backend = NULL;
	const struct lb_service *svc = &work->service;
	struct ct_entry *entry = &work->fresh;

	if (!svc->count)
		return NULL;
	/* The client's affinity goes before. */
	if (*backend_id && !(svc->flags & LB_AFFINITY))
		backend = bpf_map_lookup_elem(&BACKENDS, backend_id);
	if (!backend || !lb_takes_flows(backend->flags))
		backend = AF_FN(choose_backend)(ctx, work, backend_id);
	if (!backend)
		return NULL;
	__builtin_memset(entry, 0, sizeof(*entry));
	*ct_backend(entry) = *backend_id;
	entry->rev_nat_index = svc->rev_nat_index;
	ct_start(ctx, entry, work->packet.proto, CT_SERVICE, work->path.now);
	if (DEBUGS())
		AF_FN(debug_create)(ctx, work);
	/* Without the entry, the next packet may go elsewhere. */
	AF_FN(ct_write)(&work->flow, entry);
	return backend;
}

/* Of a connection of a client outside whose backend is gone: with direct return, another one would
 * refuse it from an address that the client does not know.
 */
static __always_inline int AF_FN(is_to_refuse)(const struct AF_FN(work) * work)
{
	return options.packet.dsr == DSR_OPTION && dsr_forwards(&work->service) &&
	       work->packet.proto == IPPROTO_TCP && !(work->packet.tcp_flags & TCP_RST) &&
	       !work->translation.loopback;
}

/* Rewrites the destination to a backend of the service. Returns a drop reason, or 0; or REFUSE. */
GLOBAL int AF_FN(translate)(CTX *ctx, struct AF_FN(work) * work)
{
	const struct AF_JOIN(lb, _backend) * backend;
	struct AF_FN(packet) * packet;
	struct translation *to;
	struct ct_entry *entry;
	__u32 backend_id = 0, now;
	__be16 rev_nat_index, own_port = 0;
	__u8 opens, error, sticks, keeps = 0;

	work = OWN_WORK(work);
	if (!work)
		return DROP_INVALID;
	packet = &work->packet;
	to = &work->translation;
	rev_nat_index = work->service.rev_nat_index;
	sticks = work->service.flags & LB_AFFINITY;
	opens = packet->proto == IPPROTO_TCP && tcp_opens(packet->tcp_flags);
	now = work->path.now;
	AF_FN(ct_service)(packet, &work->flow);
	if (sticks) {
		__builtin_memset(&work->client, 0, sizeof(work->client));
		AF_TO_WORDS((__be32 *)&work->client.client, packet->saddr);
		work->client.rev_nat_id = rev_nat_index;
	}

	if (DEBUGS())
		AF_FN(debug_lookup)(ctx, work, CT_SERVICE, DEBUG_SCOPE_REVERSE);
	AF_FN(ct_fragment)(ctx, packet, METRIC_SERVICE);
	entry = AF_FN(ct_find)(&work->flow);
	if (entry && entry->rev_nat_index != rev_nat_index)
		entry = NULL;
	/* The flow begins anew, with the backend that it had. */
	if (entry && ct_is_expired(entry, now)) {
		if (!(entry->flags & CT_CLOSING))
			backend_id = *ct_backend(entry);
		entry = NULL;
	}
	if (entry && opens && (entry->flags & CT_CLOSING)) {
		if (entry->last_tx_report + options.packet.ct_service_grace < now)
			entry = NULL;
		else
			ct_reopen(entry);
	}
	if (DEBUGS())
		AF_FN(debug_found)(ctx, work, entry, entry ? CT_RESULT_REPLY : CT_RESULT_NEW);
	if (entry) {
		ct_count(ctx, entry);
		ct_touch(entry, packet->proto, CT_SERVICE, packet->tcp_flags, now);
		own_port = entry->nat_port;
		backend_id = *ct_backend(entry);
		backend = bpf_map_lookup_elem(&BACKENDS, &backend_id);
		keeps = backend && (opens ? lb_takes_flows(backend->flags)
					  : lb_keeps_flows(backend->flags, packet->proto));
		if (!backend)
			DEBUG(ctx, &work->path, AF_FN(DEBUG_NO_BACKEND), backend_id, 0);
		if (!backend && !opens && AF_FN(is_to_refuse)(work))
			return REFUSE;
		if (!keeps) {
			backend = AF_FN(choose_backend)(ctx, work, &backend_id);
			if (backend)
				*ct_backend(entry) = backend_id;
		}
	} else {
		backend = AF_FN(new_backend)(ctx, work, &backend_id);
		to->anew = packet->proto == IPPROTO_TCP && !opens;
	}
	if (!backend)
		return DROP_NO_SERVICE;
	if (sticks && !keeps)
		stick(&AFFINITIES, &work->client, backend_id);
	else if (sticks && lb_takes_flows(backend->flags))
		stick_on(&AFFINITIES, &work->client, backend_id);
	if (own_port) {
		to->sport = packet->sport;
		error = AF_FN(rewrite)(ctx, packet, SOURCE, packet->saddr, own_port);
		if (error)
			return error;
	}

	to->rev_nat_index = rev_nat_index;
	if (to->loopback && AF_SAME(backend->address, packet->saddr)) {
#if AF == 4
		error = rewrite_address4(ctx, packet, SOURCE, options.packet.loopback4);
#else
		error = rewrite_address6(ctx, packet, SOURCE, packet_options()->loopback6);
#endif
		if (error)
			return error;
		DEBUG(ctx, &work->path, AF_FN(DEBUG_LOOPBACK), AF_LAST(backend->address),
		      AF_LAST(packet->saddr));
	} else {
		to->loopback = 0;
	}
	return AF_FN(rewrite)(ctx, packet, DESTINATION, backend->address,
			      backend->port ? backend->port : packet->dport);
}

/* Makes the packet to a backend what it was when it came. Returns a drop reason, or 0. */
static __always_inline int AF_FN(untranslate)(CTX *ctx, struct AF_FN(work) * work)
{
	struct AF_FN(packet) *packet = &work->packet;
	int error;

	if (work->translation.sport) {
		error = AF_FN(rewrite)(ctx, packet, SOURCE, packet->saddr, work->translation.sport);
		if (error)
			return error;
	}
	return AF_FN(rewrite)(ctx, &work->packet, DESTINATION, work->key.address, work->key.dport);
}

/* Address and port of the service that a flow was sent to. Returns whether there is one. */
static __always_inline int AF_FN(service_of)(const struct ct_entry *entry,
					     struct AF_JOIN(lb, _reverse_nat) * to)
{
	const struct AF_JOIN(lb, _reverse_nat) * frontend;
	__be16 service = entry->rev_nat_index;

	if (entry->nat_port) {
#if AF == 4
		to->address = entry->nat_address[3];
#else
		copy6(to->address, entry->nat_address);
#endif
		to->port = entry->nat_port;
		return 1;
	}
	if (!service)
		return 0;
	frontend = bpf_map_lookup_elem(&REVERSE_NAT, &service);
	if (!frontend)
		return 0;
	*to = *frontend;
	return 1;
}

/* The backend's reply is the service's. Returns a drop reason, or 0. */
static __noinline int AF_FN(translate_back)(CTX *ctx, struct AF_FN(work) * work,
					    const struct ct_entry *entry)
{
	struct AF_FN(packet) *packet = &work->packet;
	struct AF_JOIN(lb, _reverse_nat) to ALIGNED;
	AF_ADDRESS(self);
	__be16 client_port = AF_FN(ct_client_port)(entry);
	__u8 error;

	if (entry->rev_nat_index)
		DEBUG(ctx, &work->path, AF_FN(DEBUG_REVERSE_LOOKUP), entry->rev_nat_index, 0);
	/* Of a service that is gone: the client knows no other address. */
	if (!AF_FN(service_of)(entry, &to))
		return entry->flags & CT_NODE_PORT ? DROP_NO_SERVICE : 0;
	if (client_port) {
		error = AF_FN(rewrite)(ctx, packet, DESTINATION, packet->daddr, client_port);
		if (error)
			return error;
	}
	DEBUG(ctx, &work->path, AF_FN(DEBUG_REVERSE), AF_LAST(to.address), to.port);
	if (entry->flags & CT_LOOPBACK) {
		AF_COPY(self, packet->saddr);
		DEBUG(ctx, &work->path, AF_FN(DEBUG_LOOPBACK_BACK), AF_LAST(packet->daddr),
		      AF_LAST(self));
		error = AF_FN(rewrite_address)(ctx, packet, DESTINATION, self);
		if (error)
			return error;
	}
	return AF_FN(rewrite)(ctx, packet, SOURCE, to.address,
			      to.port && has_ports(packet->proto) ? to.port : packet->sport);
}
