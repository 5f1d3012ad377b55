/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Garbage collection of one address family. */

#define GC_NAT AF_JOIN(cilium_snat_v, _external)

static __always_inline int AF_FN(gc_is_listed)(AF_ADDRESS_IN address)
{
	struct gc_address key = {};

	AF_TO_WORDS(key.address, address);
	return bpf_map_lookup_elem(&skep_gc_addresses, &key) != NULL;
}

/* The entry goes in this pass. */
static __always_inline int AF_FN(gc_is_dead)(const struct gc_pass *pass, const ct_key_t *key,
					     const struct ct_entry *entry)
{
	return entry->lifetime < pass->now ||
	       (pass->by_address &&
		(AF_FN(gc_is_listed)(key->daddr) || AF_FN(gc_is_listed)(key->saddr)));
}

/* Both NAT entries of a flow opened by this node or one of its pods. */
static __noinline int AF_FN(gc_delete_nat)(struct gc_pass *pass, const ct_key_t *flow, int is_dsr)
{
	nat_key_t forward ALIGNED = {}, reverse_key ALIGNED = {};
	const nat_entry_t *entry;

	if (!pass || !flow)
		return 0;
	forward.proto = flow->proto;
	forward.flags = NAT_FORWARD;
	if (is_dsr) {
		/* Format of old releases: source of replies of this flow. */
		AF_COPY(forward.daddr, flow->daddr);
		AF_COPY(forward.saddr, flow->saddr);
		forward.dport = flow->sport;
		forward.sport = flow->dport;
		if (!bpf_map_delete_elem(&GC_NAT, &forward))
			pass->nat_forward_deleted++;
		return 0;
	}
	AF_COPY(forward.daddr, flow->saddr);
	AF_COPY(forward.saddr, flow->daddr);
	forward.dport = flow->dport;
	forward.sport = flow->sport;
	entry = bpf_map_lookup_elem(&GC_NAT, &forward);
	if (!entry)
		return 0;
	AF_FN(nat_reverse_key)(&forward, entry->address, entry->port, &reverse_key);
	if (!bpf_map_delete_elem(&GC_NAT, &forward))
		pass->nat_forward_deleted++;
	/* Unless the port was reused by another flow. */
	entry = bpf_map_lookup_elem(&GC_NAT, &reverse_key);
	if (entry && AF_SAME(entry->address, forward.saddr) && entry->port == forward.sport &&
	    !bpf_map_delete_elem(&GC_NAT, &reverse_key))
		pass->nat_reverse_deleted++;
	return 0;
}

static __always_inline void AF_FN(gc_delete)(struct gc_pass *pass, void *map, const ct_key_t *key,
					     __u8 flags)
{
	if (bpf_map_delete_elem(map, key))
		return;
	pass->deleted++;
	if (key->flags == CT_EGRESS)
		AF_FN(gc_delete_nat)(pass, key, flags & CT_DSR);
}

/* Deletes the entry at the end of the last slice, unless it was used since. */
static __always_inline void AF_FN(gc_delete_pending)(struct gc_pass *pass, void *map)
{
	ct_key_t key ALIGNED = pass->pending.AF_FN(flow);
	const struct ct_entry *entry = bpf_map_lookup_elem(map, &key);

	pass->is_pending = 0;
	if (!entry)
		return;
	if (AF_FN(gc_is_dead)(pass, &key, entry))
		AF_FN(gc_delete)(pass, map, &key, entry->flags);
	else
		pass->alive++;
}

/* An entry of a connection tracking map. */
static __always_inline int AF_FN(gc_flow)(struct bpf_iter__bpf_map_elem *ctx, void *map)
{
	const ct_key_t *found = ctx->key;
	const struct ct_entry *entry = ctx->value;
	struct gc_pass *pass = gc_pass();
	ct_key_t key ALIGNED;
	int is_end;

	if (!pass)
		return 0;
	if (pass->is_pending)
		AF_FN(gc_delete_pending)(pass, map);
	if (!found || !entry)
		return 0;
	if (!pass->now)
		pass->now = gc_clock();
	is_end = gc_ends_slice(pass, ctx->meta->seq);
	if (!AF_FN(gc_is_dead)(pass, found, entry)) {
		pass->alive++;
		return 0;
	}
	if (is_end) {
		pass->pending.AF_FN(flow) = *found;
		pass->is_pending = 1;
		return 0;
	}
	key = *found;
	AF_FN(gc_delete)(pass, map, &key, entry->flags);
	return 0;
}

static __always_inline const struct ct_entry *AF_FN(gc_find_flow)(const ct_key_t *key)
{
	if (key->proto == IPPROTO_TCP)
		return bpf_map_lookup_elem(&AF_JOIN(cilium_ct, _global), key);
	return bpf_map_lookup_elem(&AF_JOIN(cilium_ct_any, _global), key);
}

/* A NAT entry without a conntrack entry, and not just created. */
static __noinline int AF_FN(gc_is_orphan)(const struct gc_pass *pass, const nat_key_t *key,
					  const nat_entry_t *entry)
{
	ct_key_t flow ALIGNED = {};
	const struct ct_entry *tracked;

	if (!pass || !key || !entry || entry->created + 1 >= pass->now)
		return 0;
	flow.proto = key->proto;
	flow.flags = CT_EGRESS;
	if (key->flags & NAT_REVERSE) {
		AF_COPY(flow.daddr, entry->address);
		AF_COPY(flow.saddr, key->saddr);
		flow.dport = key->sport;
		flow.sport = entry->port;
		return !AF_FN(gc_find_flow)(&flow);
	}
	AF_COPY(flow.daddr, key->saddr);
	AF_COPY(flow.saddr, key->daddr);
	flow.dport = key->dport;
	flow.sport = key->sport;
	if (AF_FN(gc_find_flow)(&flow))
		return 0;
	AF_COPY(flow.daddr, key->daddr);
	AF_COPY(flow.saddr, key->saddr);
	flow.dport = key->sport;
	flow.sport = key->dport;
	tracked = AF_FN(gc_find_flow)(&flow);
	return !tracked || !(tracked->flags & CT_DSR);
}

/* Counts an entry of the NAT map, after deleting it if it is stale. */
static __always_inline void AF_FN(gc_settle)(struct gc_pass *pass, const nat_key_t *key,
					     int is_orphan)
{
	int is_deleted = is_orphan && !bpf_map_delete_elem(&GC_NAT, key);

	if (key->flags & NAT_REVERSE) {
		pass->nat_reverse_deleted += is_deleted;
		pass->nat_reverse_alive += !is_orphan;
	} else {
		pass->nat_forward_deleted += is_deleted;
		pass->nat_forward_alive += !is_orphan;
	}
}

static __always_inline void AF_FN(gc_settle_pending)(struct gc_pass *pass)
{
	nat_key_t key ALIGNED = pass->pending.AF_FN(nat);
	const nat_entry_t *entry = bpf_map_lookup_elem(&GC_NAT, &key);

	pass->is_pending = 0;
	if (entry)
		AF_FN(gc_settle)(pass, &key, AF_FN(gc_is_orphan)(pass, &key, entry));
}

/* An entry of the NAT map. */
static __always_inline int AF_FN(gc_translation)(struct bpf_iter__bpf_map_elem *ctx)
{
	const nat_key_t *found = ctx->key;
	const nat_entry_t *value = ctx->value;
	struct gc_pass *pass = gc_pass();
	nat_entry_t entry;
	nat_key_t key ALIGNED;
	int is_end, is_orphan;

	if (!pass)
		return 0;
	if (pass->is_pending)
		AF_FN(gc_settle_pending)(pass);
	if (!found || !value)
		return 0;
	if (!pass->now)
		pass->now = gc_clock();
	key = *found;
	entry = *value;
	is_end = gc_ends_slice(pass, ctx->meta->seq);
	is_orphan = AF_FN(gc_is_orphan)(pass, &key, &entry);
	if (is_orphan && is_end) {
		pass->pending.AF_FN(nat) = key;
		pass->is_pending = 1;
		return 0;
	}
	AF_FN(gc_settle)(pass, &key, is_orphan);
	return 0;
}

#undef GC_NAT
