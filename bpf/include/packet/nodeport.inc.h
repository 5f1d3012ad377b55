/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Services for clients outside, of one address family. */

/* The client may use the service: it is in a source range. */
static __always_inline int AF_FN(in_source_range)(const struct AF_FN(packet) * packet,
						  const struct lb_service *svc)
{
	struct AF_JOIN(lb, _source_range_key) key = {
		.prefixlen = 32 + 8 * AF_SIZE,
		.rev_nat_id = svc->rev_nat_index,
	};
	int listed;

	if (!(svc->flags & LB_SOURCE_RANGE))
		return 1;
	AF_COPY(key.address, packet->saddr);
	listed = bpf_map_lookup_elem(&AF_JOIN(cilium_lb, _source_range), &key) != NULL;
	return svc->flags2 & LB2_DENY_SOURCES ? !listed : listed;
}

/* Remembers that the flow from a client to a backend came by a service. Returns a drop reason, or
 * 0.
 */
static __always_inline int AF_FN(nodeport_track)(CTX *ctx, struct AF_FN(work) * work)
{
	const struct ct_entry *entry = AF_FN(ct_lookup)(ctx, work, CT_EGRESS, CT_FORWARD);
	int error;

	if (entry && (entry->flags & CT_NODE_PORT) && AF_FN(is_same_flow)(work, entry))
		return 0;
	if (!entry)
		entry = AF_FN(half_closed)(work);
	if (entry && (entry->flags & by_service()) && AF_FN(is_of_another)(work, entry)) {
		error = AF_FN(take_own_port)(ctx, work);
		if (error)
			return error;
	}
	__builtin_memset(&work->fresh, 0, sizeof(work->fresh));
	work->fresh.flags = CT_NODE_PORT;
	work->fresh.rev_nat_index = work->translation.rev_nat_index;
	AF_FN(ct_set_client_port)(&work->fresh, work->translation.sport);
	work->fresh.source_identity = world_identity(options.packet.dual_stack, AF == 6);
	return AF_FN(ct_create)(ctx, work, CT_EGRESS, 0) ? DROP_CT_CREATE : 0;
}

/* A connection that began before direct return was on goes on as it began, with another source. */
static __always_inline int AF_FN(keeps_source)(struct AF_FN(work) * work)
{
	const struct AF_FN(packet) *packet = &work->packet;
	const struct ct_entry *entry;

	if (packet->proto != IPPROTO_TCP)
		return 0;
	AF_FN(ct_forward)(packet, &work->flow, CT_EGRESS);
	entry = AF_FN(ct_find)(&work->flow);
	if (!entry || !(entry->flags & CT_NODE_PORT) || !AF_FN(is_same_flow)(work, entry))
		return 0;
	if (!tcp_opens(packet->tcp_flags))
		return 1;
	/* The next one from the same port. */
	bpf_map_delete_elem(&AF_JOIN(cilium_ct, _global), &work->flow);
	return 0;
}

/* The flow of a client to a backend that this packet answers, if it came by a service, of this node
 * or, with direct return, of another one. It may have expired: whether the packet may pass does not
 * depend on it, and the client knows no other address.
 */
static __always_inline struct ct_entry *AF_FN(nodeport_flow)(CTX *ctx, struct AF_FN(work) * work)
{
	const struct AF_FN(packet) *packet = &work->packet;
	struct path *path = &work->path;
	struct ct_entry *entry;

	AF_FN(ct_reverse)(packet, &work->flow, CT_INGRESS);
	if (DEBUGS())
		AF_FN(debug_lookup)(ctx, work, CT_INGRESS, DEBUG_SCOPE_REVERSE);
	entry = AF_FN(ct_find)(&work->flow);
	if (entry && !(entry->flags & by_service()))
		entry = NULL;
	if (DEBUGS())
		AF_FN(debug_found)(ctx, work, entry, entry ? CT_RESULT_REPLY : CT_RESULT_NEW);
	if (!entry)
		return NULL;
	path->reason = CT_RESULT_REPLY;
	ct_count(ctx, entry);
	path->report = ct_touch(entry, packet->proto, CT_INGRESS, packet->tcp_flags, path->now);
	return entry;
}

static __always_inline void AF_FN(learn_neighbour)(CTX *ctx, const struct AF_FN(packet) * packet)
{
	struct AF_FN(neighbour_key) key;
	struct neighbour fresh = {};
	const struct neighbour *known;
	const struct ethernet *ethernet = packet_bytes(ctx, 0, sizeof(*ethernet));

	if (!ethernet)
		return;
	AF_COPY(key.address, packet->saddr);
	copy_mac(fresh.mac, ethernet->source);
	known = bpf_map_lookup_elem(&AF_FN(cilium_nodeport_neigh), &key);
	if (!known || *(const __u64 *)known != *(const __u64 *)&fresh)
		bpf_map_update_elem(&AF_FN(cilium_nodeport_neigh), &key, &fresh, BPF_ANY);
}

/* The service of a packet that came from outside; `known` if the address is one of the node. */
static __always_inline const struct lb_service *AF_FN(outside_service)(struct AF_FN(work) * work,
								       int known, int *unknown_port)
{
	const struct AF_FN(packet) *packet = &work->packet;
	struct AF_JOIN(lb, _service_key) *key = &work->key;
	const struct lb_service *svc;

	AF_COPY(key->address, packet->daddr);
	key->dport = packet->dport;
	key->proto = packet->proto;
	svc = bpf_map_lookup_elem(&SERVICES, key);
	if (svc || known)
		return svc;
	key->dport = 0;
	key->proto = 0;
	*unknown_port = bpf_map_lookup_elem(&SERVICES, key) != NULL;
	return NULL;
}

/* As above; sends debug messages. */
static __noinline const struct lb_service *AF_FN(debug_outside)(CTX *ctx, struct AF_FN(work) * work,
								int known, int *unknown_port)
{
	const struct lb_service *svc = AF_FN(outside_service)(work, known, unknown_port);

	AF_FN(debug_frontend)(ctx, work, svc != NULL);
	return svc;
}
