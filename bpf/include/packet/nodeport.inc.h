/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Services for clients outside, of one address family. */

/* The client is in the service's source ranges. */
static __always_inline int AF_FN(in_source_range)(const packet_t *packet,
						  const struct lb_service *svc)
{
	lb_source_range_key_t key = {
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

/* Creates the conntrack entry of a flow from a client to a backend. Returns a drop reason, or 0. */
static __always_inline int AF_FN(nodeport_track)(CTX *ctx, scratch_t *scratch)
{
	const struct ct_entry *entry = AF_FN(ct_lookup)(ctx, scratch, CT_EGRESS, CT_FORWARD);
	int error;

	if (entry && (entry->flags & CT_NODE_PORT) && AF_FN(is_same_flow)(scratch, entry))
		return 0;
	if (!entry)
		entry = AF_FN(half_closed)(scratch);
	if (entry && (entry->flags & by_service()) && AF_FN(is_other_service)(scratch, entry)) {
		error = AF_FN(allocate_client_port)(ctx, scratch);
		if (error)
			return error;
	}
	if (entry)
		flow_raise_epoch();
	__builtin_memset(&scratch->fresh, 0, sizeof(scratch->fresh));
	scratch->fresh.flags = CT_NODE_PORT;
	scratch->fresh.rev_nat_index = scratch->translation.rev_nat_index;
	AF_FN(ct_set_client_port)(&scratch->fresh, scratch->translation.sport);
	scratch->fresh.source_identity = world_identity(options.packet.dual_stack, AF == 6);
	return AF_FN(ct_create)(ctx, scratch, CT_EGRESS, 0) ? DROP_CT_CREATE : 0;
}

/* Connections from before DSR was enabled keep SNAT. */
static __always_inline int AF_FN(keeps_source)(scratch_t *scratch)
{
	const packet_t *packet = &scratch->packet;
	const struct ct_entry *entry;

	if (packet->proto != IPPROTO_TCP)
		return 0;
	AF_FN(ct_forward)(packet, &scratch->flow, CT_EGRESS);
	entry = AF_FN(ct_find)(&scratch->flow);
	if (!entry || !(entry->flags & CT_NODE_PORT) || !AF_FN(is_same_flow)(scratch, entry))
		return 0;
	if (!tcp_opens(packet->tcp_flags))
		return 1;
	/* The next one from the same port. */
	flow_raise_epoch();
	bpf_map_delete_elem(&AF_JOIN(cilium_ct, _global), &scratch->flow);
	return 0;
}

/* Returns the service flow that the packet is a reply of, of this node or, with DSR, of another
 * one. It may have expired: it does not decide on the packet, and the client knows no other
 * address.
 */
static __always_inline struct ct_entry *AF_FN(nodeport_flow)(CTX *ctx, scratch_t *scratch)
{
	const packet_t *packet = &scratch->packet;
	struct trace_ctx *trace = &scratch->trace;
	struct ct_entry *entry;

	AF_FN(ct_reverse)(packet, &scratch->flow, CT_INGRESS);
	if (DEBUGS(trace))
		AF_FN(debug_lookup)(ctx, scratch, CT_INGRESS, DEBUG_SCOPE_REVERSE);
	entry = AF_FN(ct_find)(&scratch->flow);
	if (entry && !(entry->flags & by_service()))
		entry = NULL;
	if (DEBUGS(trace))
		AF_FN(debug_found)(ctx, scratch, entry, entry ? CT_RESULT_REPLY : CT_RESULT_NEW);
	if (!entry)
		return NULL;
	trace->reason = CT_RESULT_REPLY;
	ct_count(ctx, entry);
	trace->report = ct_touch(entry, packet->proto, CT_INGRESS, packet->tcp_flags, trace->now);
	return entry;
}

static __always_inline void AF_FN(learn_neighbour)(CTX *ctx, const packet_t *packet)
{
	neighbour_key_t key;
	struct neighbour fresh = {};
	const struct neighbour *known;
	const struct ethernet *ethernet = packet_bytes(ctx, 0, sizeof(*ethernet));

	if (!ethernet)
		return;
	AF_COPY(key.address, packet->saddr);
	copy_mac(fresh.mac, ethernet->source);
	known = bpf_map_lookup_elem(&AF_FN(cilium_nodeport_neigh), &key);
	if (known && *(const __u64 *)known == *(const __u64 *)&fresh)
		return;
	if (known)
		flow_raise_epoch();
	bpf_map_update_elem(&AF_FN(cilium_nodeport_neigh), &key, &fresh, BPF_ANY);
}

/* Looks up the service of a packet from outside; `known`: the address is one of the node. */
static __always_inline const struct lb_service *AF_FN(outside_service)(scratch_t *scratch,
								       int known, int *unknown_port)
{
	const packet_t *packet = &scratch->packet;
	lb_service_key_t *key = &scratch->key;
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
static __noinline const struct lb_service *AF_FN(debug_outside)(CTX *ctx, scratch_t *scratch,
								int known, int *unknown_port)
{
	const struct lb_service *svc = AF_FN(outside_service)(scratch, known, unknown_port);

	AF_FN(debug_frontend)(ctx, scratch, svc != NULL);
	return svc;
}
