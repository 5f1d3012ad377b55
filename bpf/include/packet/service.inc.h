/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Services of one address family. */

static __always_inline const lb_backend_t *
AF_FN(random_backend)(const struct lb_service *svc, lb_service_key_t *key, __u32 *backend_id)
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

/* The service uses a Maglev table. */
static __always_inline int AF_FN(has_table)(const scratch_t *scratch)
{
	if (options.packet.lb_per_service && lb_algorithm(&scratch->service))
		return lb_algorithm(&scratch->service) == LB_ALGORITHM_MAGLEV;
	/* Pods use random selection. */
	return options.packet.maglev && !scratch->translation.loopback;
}

/* Returns the Maglev backend of the packet, the same on all nodes. NULL without a table. */
static __always_inline const lb_backend_t *AF_FN(table_backend)(const scratch_t *scratch,
								__u32 *backend_id)
{
	const packet_t *packet = &scratch->packet;
	__be16 service = scratch->service.rev_nat_index, sport = packet->sport;
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
	if (scratch->service.flags & LB_AFFINITY)
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

/* Debug message: selected slot and backend id; 0 if there is no such slot. */
static __noinline void AF_FN(debug_slot)(CTX *ctx, const scratch_t *scratch,
					 const lb_backend_t *backend, __u32 backend_id)
{
	const lb_service_key_t *key = &scratch->key;
	const struct trace_ctx *trace = &scratch->trace;
	__u16 slot = key->backend_slot;
	__be16 port = key->dport;

	debug_output(ctx, trace, AF_FN(DEBUG_SLOT), slot, port, 0);
	if (backend)
		debug_output(ctx, trace, AF_FN(DEBUG_BACKEND), AF_LAST(backend->address),
			     backend->port, 0);
	else if (backend_id)
		debug_output(ctx, trace, AF_FN(DEBUG_NO_BACKEND), backend_id, 0, 0);
	else
		debug_output(ctx, trace, AF_FN(DEBUG_NO_SLOT), slot, port, 0);
}

/* Debug message: service lookup. */
static __noinline void AF_FN(debug_frontend)(CTX *ctx, const scratch_t *scratch, int found)
{
	const packet_t *packet = &scratch->packet;

	debug_output(ctx, &scratch->trace, AF_FN(DEBUG_FRONTEND), AF_LAST(packet->daddr),
		     packet->dport, 0);
	if (found)
		return;
#if AF == 4
	debug_output(ctx, &scratch->trace, DEBUG_NO_FRONTEND4, 0, 0, 0);
#else
	debug_output(ctx, &scratch->trace, DEBUG_NO_FRONTEND6, packet->daddr[1], packet->daddr[2],
		     0);
#endif
}

/* Selects a backend for a new flow, with session affinity. */
static __always_inline const lb_backend_t *AF_FN(choose_backend)(CTX *ctx, scratch_t *scratch,
								 __u32 *backend_id)
{
	const lb_backend_t *backend = NULL;
	const struct lb_service *svc = &scratch->service;

	if (svc->flags & LB_AFFINITY)
		backend = sticky_backend(&AFFINITIES, &BACKENDS, &scratch->client, svc, backend_id);
	if (!backend && AF_FN(has_table)(scratch))
		backend = AF_FN(table_backend)(scratch, backend_id);
	if (backend)
		return backend;
	*backend_id = 0;
	backend = AF_FN(random_backend)(&scratch->service, &scratch->key, backend_id);
	if (DEBUGS(&scratch->trace))
		AF_FN(debug_slot)(ctx, scratch, backend, *backend_id);
	return backend;
}

/* Selects the backend of a new flow and creates its entry; prefers `backend_id` if it accepts new
 * flows.
 */
static __always_inline const lb_backend_t *AF_FN(new_backend)(CTX *ctx, scratch_t *scratch,
							      __u32 *backend_id)
{
	const lb_backend_t *backend = NULL;
	const struct lb_service *svc = &scratch->service;
	struct ct_entry *entry = &scratch->fresh;

	if (!svc->count)
		return NULL;
	/* Session affinity takes precedence. */
	if (*backend_id && !(svc->flags & LB_AFFINITY))
		backend = bpf_map_lookup_elem(&BACKENDS, backend_id);
	if (!backend || !lb_takes_flows(backend->flags))
		backend = AF_FN(choose_backend)(ctx, scratch, backend_id);
	if (!backend)
		return NULL;
	__builtin_memset(entry, 0, sizeof(*entry));
	*ct_backend(entry) = *backend_id;
	entry->rev_nat_index = svc->rev_nat_index;
	ct_start(ctx, entry, scratch->packet.proto, CT_SERVICE, scratch->trace.now);
	if (DEBUGS(&scratch->trace))
		AF_FN(debug_create)(ctx, scratch);
	/* Without the entry, the next packet may have another backend. */
	AF_FN(ct_write)(&scratch->flow, entry);
	return backend;
}

/* A connection from outside whose backend is gone: with DSR, another backend would reset it from an
 * address unknown to the client.
 */
static __always_inline int AF_FN(is_to_refuse)(const scratch_t *scratch)
{
	return options.packet.dsr == DSR_OPTION && dsr_forwards(&scratch->service) &&
	       scratch->packet.proto == IPPROTO_TCP && !(scratch->packet.tcp_flags & TCP_RST) &&
	       !scratch->translation.loopback;
}

/* DNAT to a backend of the service. Returns a drop reason, or 0; or REFUSE. */
GLOBAL int AF_FN(translate)(CTX *ctx, scratch_t *scratch)
{
	const lb_backend_t *backend;
	packet_t *packet;
	struct translation *to;
	struct ct_entry *entry;
	__u32 backend_id = 0, now;
	__be16 rev_nat_index, own_port = 0;
	__u8 opens, error, sticks, keeps = 0;

	scratch = OWN_SCRATCH(scratch);
	if (!scratch)
		return DROP_INVALID;
	packet = &scratch->packet;
	to = &scratch->translation;
	rev_nat_index = scratch->service.rev_nat_index;
	sticks = scratch->service.flags & LB_AFFINITY;
	opens = packet->proto == IPPROTO_TCP && tcp_opens(packet->tcp_flags);
	now = scratch->trace.now;
	AF_FN(ct_service)(packet, &scratch->flow);
	if (sticks) {
		__builtin_memset(&scratch->client, 0, sizeof(scratch->client));
		AF_TO_WORDS((__be32 *)&scratch->client.client, packet->saddr);
		scratch->client.rev_nat_id = rev_nat_index;
	}

	if (DEBUGS(&scratch->trace))
		AF_FN(debug_lookup)(ctx, scratch, CT_SERVICE, DEBUG_SCOPE_REVERSE);
	AF_FN(ct_fragment)(ctx, packet, METRIC_SERVICE);
	entry = AF_FN(ct_find)(&scratch->flow);
	if (entry && entry->rev_nat_index != rev_nat_index)
		entry = NULL;
	/* Recreates the flow with the same backend. */
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
	if (DEBUGS(&scratch->trace))
		AF_FN(debug_found)(ctx, scratch, entry, entry ? CT_RESULT_REPLY : CT_RESULT_NEW);
	if (entry) {
		ct_count(ctx, entry);
		ct_touch(entry, packet->proto, CT_SERVICE, packet->tcp_flags, now);
		own_port = entry->nat_port;
		backend_id = *ct_backend(entry);
		backend = bpf_map_lookup_elem(&BACKENDS, &backend_id);
		keeps = backend && (opens ? lb_takes_flows(backend->flags)
					  : lb_keeps_flows(backend->flags, packet->proto));
		if (!backend)
			DEBUG(ctx, &scratch->trace, AF_FN(DEBUG_NO_BACKEND), backend_id, 0);
		if (!backend && !opens && AF_FN(is_to_refuse)(scratch))
			return REFUSE;
		if (!keeps) {
			backend = AF_FN(choose_backend)(ctx, scratch, &backend_id);
			if (backend)
				*ct_backend(entry) = backend_id;
			flow_raise_epoch();
		}
	} else {
		backend = AF_FN(new_backend)(ctx, scratch, &backend_id);
		to->anew = packet->proto == IPPROTO_TCP && !opens;
	}
	if (!backend)
		return DROP_NO_SERVICE;
	if (sticks && !keeps)
		stick(&AFFINITIES, &scratch->client, backend_id);
	else if (sticks && lb_takes_flows(backend->flags))
		stick_on(&AFFINITIES, &scratch->client, backend_id);
	if (own_port) {
		to->sport = packet->sport;
		error = AF_FN(rewrite)(ctx, packet, SOURCE, packet->saddr, own_port);
		if (error)
			return error;
	}

	to->rev_nat_index = rev_nat_index;
	if (to->loopback && AF_SAME(backend->address, packet->saddr)) {
		error = AF_FN(rewrite_address)(ctx, packet, SOURCE, AF_OPTION(loopback));
		if (error)
			return error;
		DEBUG(ctx, &scratch->trace, AF_FN(DEBUG_LOOPBACK), AF_LAST(backend->address),
		      AF_LAST(packet->saddr));
	} else {
		to->loopback = 0;
	}
	return AF_FN(rewrite)(ctx, packet, DESTINATION, backend->address,
			      backend->port ? backend->port : packet->dport);
}

/* Reverts the translation of a request. Returns a drop reason, or 0. */
static __always_inline int AF_FN(untranslate)(CTX *ctx, scratch_t *scratch)
{
	packet_t *packet = &scratch->packet;
	int error;

	if (scratch->translation.sport) {
		error = AF_FN(rewrite)(ctx, packet, SOURCE, packet->saddr,
				       scratch->translation.sport);
		if (error)
			return error;
	}
	return AF_FN(rewrite)(ctx, &scratch->packet, DESTINATION, scratch->key.address,
			      scratch->key.dport);
}

/* Looks up the service address of a flow. Returns 0 if there is none. */
static __always_inline int AF_FN(service_of)(const struct ct_entry *entry, lb_reverse_nat_t *to)
{
	const lb_reverse_nat_t *frontend;
	__be16 service = entry->rev_nat_index;

	if (entry->nat_port) {
		AF_FROM_WORDS(to->address, entry->nat_address);
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

/* Reverse-translates a backend's reply. Returns a drop reason, or 0. */
static __noinline int AF_FN(reverse_translate)(CTX *ctx, scratch_t *scratch,
					       const struct ct_entry *entry)
{
	packet_t *packet = &scratch->packet;
	lb_reverse_nat_t to ALIGNED;
	AF_ADDRESS(self);
	__be16 client_port = AF_FN(ct_client_port)(entry);
	__u8 error;

	if (entry->rev_nat_index)
		DEBUG(ctx, &scratch->trace, AF_FN(DEBUG_REVERSE_LOOKUP), entry->rev_nat_index, 0);
	/* Also of a deleted service: the client knows no other address. */
	if (!AF_FN(service_of)(entry, &to))
		return entry->flags & CT_NODE_PORT ? DROP_NO_SERVICE : 0;
	if (client_port) {
		error = AF_FN(rewrite)(ctx, packet, DESTINATION, packet->daddr, client_port);
		if (error)
			return error;
	}
	DEBUG(ctx, &scratch->trace, AF_FN(DEBUG_REVERSE), AF_LAST(to.address), to.port);
	if (entry->flags & CT_LOOPBACK) {
		AF_COPY(self, packet->saddr);
		DEBUG(ctx, &scratch->trace, AF_FN(DEBUG_LOOPBACK_BACK), AF_LAST(packet->daddr),
		      AF_LAST(self));
		error = AF_FN(rewrite_address)(ctx, packet, DESTINATION, self);
		if (error)
			return error;
	}
	return AF_FN(rewrite)(ctx, packet, SOURCE, to.address,
			      to.port && has_ports(packet->proto) ? to.port : packet->sport);
}
