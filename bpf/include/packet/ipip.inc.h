/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Packets inside others of one address family. */

/* Takes off the header outside, if the packet is for a pod of this node. Returns 0, or less: a drop
 * reason.
 */
static __always_inline int AF_FN(unpack)(CTX *ctx, struct AF_FN(work) * work)
{
	const struct AF_FN(ip) *ip = packet_bytes(ctx, L3, sizeof(*ip));
	const struct lxc_value *backend;

	work->is_unpacked = 0;
	if (!ip || ip->proto != TUNNEL_PROTO)
		return 0;
#if AF == 4
	if (ip->version_ihl != 0x45 ||
	    (ip->fragment & bpf_htons(IP4_MORE_FRAGMENTS | IP4_FRAGMENT_OFFSET)))
		return 0;
#endif
	AF_COPY(work->chosen, ip->destination);
	backend = AF_FN(lxc_lookup)(work->chosen);
	if (!backend || (backend->flags & (LXC_HOST | LXC_AT_HOST_NS)))
		return 0;
	if (bpf_skb_adjust_room(ctx, -(__s32)sizeof(*ip), BPF_ADJ_ROOM_MAC,
				BPF_F_ADJ_ROOM_FIXED_GSO))
		return FAIL(&work->path, DROP_WRITE);
	work->is_unpacked = 1;
	return 0;
}

/* The id of the backend in a slot, if it is the chosen one; else 0. A function of its own for the
 * verifier, which would follow each slot.
 */
GLOBAL __u32 AF_FN(chosen_in_slot)(struct AF_FN(work) * work, __u32 slot)
{
	const struct AF_JOIN(lb, _backend) * backend;
	const struct lb_service *value;
	__u32 id;

	work = OWN_WORK(work);
	if (!work)
		return 0;
	work->key.backend_slot = slot;
	value = bpf_map_lookup_elem(&SERVICES, &work->key);
	if (!value)
		return 0;
	id = value->backend_id;
	backend = bpf_map_lookup_elem(&BACKENDS, &id);
	return backend && AF_SAME(backend->address, work->chosen) ? id : 0;
}

/* Remembers for the flow that its backend is the chosen one. Returns a drop reason, or 0. */
GLOBAL int AF_FN(choose_unpacked)(struct AF_FN(work) * work)
{
	const struct AF_JOIN(lb, _backend) * backend;
	struct AF_FN(packet) * packet;
	struct ct_entry *entry;
	__u32 slots, slot, id = 0;

	work = OWN_WORK(work);
	if (!work || !options.packet.ipip_termination)
		return DROP_NO_SERVICE;
	packet = &work->packet;
	AF_FN(ct_service)(packet, &work->flow);
	entry = AF_FN(ct_find)(&work->flow);
	if (entry && entry->rev_nat_index == work->service.rev_nat_index) {
		id = *ct_backend(entry);
		backend = bpf_map_lookup_elem(&BACKENDS, &id);
		if (!backend || !AF_SAME(backend->address, work->chosen))
			id = 0;
		else if (!ct_is_expired(entry, work->path.now))
			return 0;
	}
	slots = work->service.count + work->service.qcount;
	for (slot = 1; slot <= UNPACK_SLOTS; slot++) {
		if (slot > slots || id)
			break;
		id = AF_FN(chosen_in_slot)(work, slot);
	}
	work->key.backend_slot = 0;
	if (!id)
		return DROP_NO_SERVICE;
	entry = &work->fresh;
	__builtin_memset(entry, 0, sizeof(*entry));
	*ct_backend(entry) = id;
	entry->rev_nat_index = work->service.rev_nat_index;
	/* What counts the packet is its lookup, which follows. */
	ct_begin(entry, packet_options(), packet->proto, CT_SERVICE, work->path.now);
	return AF_FN(ct_write)(&work->flow, entry) ? DROP_CT_CREATE : 0;
}
