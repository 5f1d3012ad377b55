/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* IPIP termination of one address family. */

/* Decapsulates a packet to a pod of this node. Returns 0, or less: a drop reason. */
static __always_inline int AF_FN(decapsulate)(CTX *ctx, scratch_t *scratch)
{
	const ip_t *ip = packet_bytes(ctx, L3, sizeof(*ip));
	const struct lxc_value *backend;

	scratch->is_decapsulated = 0;
	if (!ip || ip->proto != TUNNEL_PROTO)
		return 0;
#if AF == 4
	if (ip->version_ihl != 0x45 ||
	    (ip->fragment & bpf_htons(IP4_MORE_FRAGMENTS | IP4_FRAGMENT_OFFSET)))
		return 0;
#endif
	AF_COPY(scratch->chosen, ip->destination);
	backend = AF_FN(lxc_lookup)(scratch->chosen);
	if (!backend || (backend->flags & (LXC_HOST | LXC_AT_HOST_NS)))
		return 0;
	if (bpf_skb_adjust_room(ctx, -(__s32)sizeof(*ip), BPF_ADJ_ROOM_MAC,
				BPF_F_ADJ_ROOM_FIXED_GSO))
		return FAIL(&scratch->trace, DROP_WRITE);
	scratch->is_decapsulated = 1;
	return 0;
}

/* Returns the backend id of a slot if it is the selected backend, else 0. Not inlined: the verifier
 * would explore each slot.
 */
GLOBAL __u32 AF_FN(chosen_in_slot)(scratch_t *scratch, __u32 slot)
{
	const lb_backend_t *backend;
	const struct lb_service *value;
	__u32 id;

	scratch = OWN_SCRATCH(scratch);
	if (!scratch)
		return 0;
	scratch->key.backend_slot = slot;
	value = bpf_map_lookup_elem(&SERVICES, &scratch->key);
	if (!value)
		return 0;
	id = value->backend_id;
	backend = bpf_map_lookup_elem(&BACKENDS, &id);
	return backend && AF_SAME(backend->address, scratch->chosen) ? id : 0;
}

/* Creates the service entry with the selected backend. Returns a drop reason, or 0. */
GLOBAL int AF_FN(choose_decapsulated)(scratch_t *scratch)
{
	const lb_backend_t *backend;
	packet_t *packet;
	struct ct_entry *entry;
	__u32 slots, slot, id = 0;

	scratch = OWN_SCRATCH(scratch);
	if (!scratch || !options.packet.ipip_termination)
		return DROP_NO_SERVICE;
	packet = &scratch->packet;
	AF_FN(ct_service)(packet, &scratch->flow);
	entry = AF_FN(ct_find)(&scratch->flow);
	if (entry && entry->rev_nat_index == scratch->service.rev_nat_index) {
		id = *ct_backend(entry);
		backend = bpf_map_lookup_elem(&BACKENDS, &id);
		if (!backend || !AF_SAME(backend->address, scratch->chosen))
			id = 0;
		else if (!ct_is_expired(entry, scratch->trace.now))
			return 0;
	}
	slots = scratch->service.count + scratch->service.qcount;
	for (slot = 1; slot <= DECAP_SLOTS; slot++) {
		if (slot > slots || id)
			break;
		id = AF_FN(chosen_in_slot)(scratch, slot);
	}
	scratch->key.backend_slot = 0;
	if (!id)
		return DROP_NO_SERVICE;
	entry = &scratch->fresh;
	__builtin_memset(entry, 0, sizeof(*entry));
	*ct_backend(entry) = id;
	entry->rev_nat_index = scratch->service.rev_nat_index;
	/* The following lookup counts the packet. */
	ct_begin(entry, packet_options(), packet->proto, CT_SERVICE, scratch->trace.now);
	return AF_FN(ct_write)(&scratch->flow, entry) ? DROP_CT_CREATE : 0;
}
