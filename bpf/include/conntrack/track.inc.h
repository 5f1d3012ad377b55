/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Entries of flows of one address family. */

static __always_inline struct ct_entry *AF_FN(ct_find)(const struct AF_FN(ct_key) * key)
{
	if (key->proto == IPPROTO_TCP)
		return bpf_map_lookup_elem(&AF_JOIN(cilium_ct, _global), key);
	return bpf_map_lookup_elem(&AF_JOIN(cilium_ct_any, _global), key);
}

static __always_inline int AF_FN(ct_write)(const struct AF_FN(ct_key) * key,
					   const struct ct_entry *entry)
{
	if (key->proto == IPPROTO_TCP)
		return map_update(&AF_JOIN(cilium_ct, _global), key, entry, BPF_ANY);
	return map_update(&AF_JOIN(cilium_ct_any, _global), key, entry, BPF_ANY);
}

/* Key of a flow that this packet opens, in the direction that it goes. */
static __always_inline void AF_FN(ct_forward)(const struct AF_FN(packet) * packet,
					      struct AF_FN(ct_key) * key, __u8 direction)
{
	AF_COPY(key->daddr, packet->saddr);
	AF_COPY(key->saddr, packet->daddr);
	key->dport = packet->dport;
	key->sport = packet->sport;
	key->proto = packet->proto;
	key->flags = direction | (packet->related ? CT_RELATED : 0);
}

/* Key of a flow that this packet replies to. */
static __always_inline void AF_FN(ct_reverse)(const struct AF_FN(packet) * packet,
					      struct AF_FN(ct_key) * key, __u8 direction)
{
	AF_COPY(key->daddr, packet->daddr);
	AF_COPY(key->saddr, packet->saddr);
	key->dport = packet->sport;
	key->sport = packet->dport;
	key->proto = packet->proto;
	key->flags = (direction ^ CT_INGRESS) | (packet->related ? CT_RELATED : 0);
}

/* Key of the flow to a service that this packet is of. */
static __always_inline void AF_FN(ct_service)(const struct AF_FN(packet) * packet,
					      struct AF_FN(ct_key) * key)
{
	AF_FN(ct_reverse)(packet, key, CT_SERVICE);
	key->flags = CT_SERVICE;
}

/* Counts fragments, and remembers the ports of those whose addresses were translated. */
static __always_inline void AF_FN(ct_fragment)(CTX *ctx, const struct AF_FN(packet) * packet,
					       __u8 direction)
{
	if (!packet->fragment)
		return;
	COUNT_PACKET(ctx, REASON_FRAGMENT, direction, METRIC_FILE_CONNTRACK);
	if (packet->fragment == FRAGMENT_FIRST && AF_FN(fragment_remember)(packet))
		COUNT_PACKET(ctx, REASON_FRAGMENT_UPDATE, direction, METRIC_FILE_CONNTRACK);
}

/* Debug messages: the flow of the packet is looked up, in the order of `scope`. */
static __noinline void AF_FN(debug_lookup)(CTX *ctx, const struct AF_FN(work) * work,
					   __u8 direction, __u32 scope)
{
	const struct AF_FN(packet) *packet = &work->packet;
	__u8 flags = direction;

	if (direction == CT_SERVICE)
		direction = DEBUG_DIRECTION_SERVICE;
	else if (scope != DEBUG_SCOPE_FORWARD)
		flags ^= CT_INGRESS;
	if (packet->related)
		flags |= CT_RELATED;
	debug_output(ctx, &work->path, AF_FN(DEBUG_CT_LOOKUP), AF_LAST(packet->saddr),
		     AF_LAST(packet->daddr),
		     (__u32)bpf_ntohs(packet->dport) << 16 | bpf_ntohs(packet->sport));
	debug_output(ctx, &work->path, AF_FN(DEBUG_CT_HOW), (__u32)packet->proto << 8 | flags,
		     direction, scope);
}

/* Debug messages: the entry that was found, or NULL. */
static __noinline void AF_FN(debug_found)(CTX *ctx, const struct AF_FN(work) * work,
					  const struct ct_entry *entry, __u32 result)
{
	__u32 service = 0;

	if (entry) {
		service = entry->rev_nat_index;
		debug_output(ctx, &work->path, DEBUG_CT_MATCH, entry->lifetime, service, 0);
	}
	debug_output(ctx, &work->path, DEBUG_CT_VERDICT, result, service, 0);
}

/* Debug message: a new entry. */
static __noinline void AF_FN(debug_create)(CTX *ctx, const struct AF_FN(work) * work)
{
	const struct ct_entry *entry = &work->fresh;

	debug_output(ctx, &work->path, AF_FN(DEBUG_CT_CREATE), entry->rev_nat_index,
		     entry->source_identity,
		     AF == 4 && entry->nat_port ? entry->nat_address[3] : 0);
}

/* The entry of a flow, if it lives, updated by this packet. */
static __always_inline struct ct_entry *AF_FN(ct_follow)(struct AF_FN(work) * work, __u8 direction)
{
	const struct AF_FN(packet) *packet = &work->packet;
	struct ct_entry *entry = AF_FN(ct_find)(&work->flow);
	__u32 now = work->path.now;

	if (!entry || ct_is_expired(entry, now))
		return NULL;
	if ((entry->flags & CT_CLOSING) && packet->proto == IPPROTO_TCP &&
	    tcp_opens(packet->tcp_flags)) {
		work->reopens = 1;
		return NULL;
	}
	work->path.report = ct_touch(entry, packet->proto, direction, packet->tcp_flags, now);
	return entry;
}

static __always_inline int AF_FN(is_mtu_error)(const struct AF_FN(packet) * packet)
{
#if AF == 4
	return packet->proto == IPPROTO_ICMP && packet->icmp_type == ICMP4_UNREACHABLE &&
	       packet->icmp_code == ICMP4_FRAGMENTATION_NEEDED && packet->related;
#else
	return packet->proto == IPPROTO_ICMPV6 && packet->icmp_type == ICMP6_TOO_BIG &&
	       packet->related;
#endif
}

/* The entry of the flow that the packet replies to, or is of; NULL if it is new. `reason` of the
 * path is the result, an `enum ct_result`; the path knows as well whether to report it. A function
 * of its own: inlined, its variables would be on the stacks of its callers, which call others that
 * need much, and all together have 512 bytes (in steps of 32 before 6.9).
 */
static __noinline struct ct_entry *AF_FN(ct_search)(CTX *ctx, struct AF_FN(work) * work,
						    __u8 direction, enum ct_scope scope)
{
	const struct AF_FN(packet) *packet = &work->packet;
	struct path *path = &work->path;
	struct ct_entry *entry;
	int n, forward = scope != CT_REVERSE_FIRST;

	path->report = 1;
	work->reopens = 0;
	AF_FN(ct_fragment)(ctx, packet, direction == CT_INGRESS ? METRIC_INGRESS : METRIC_EGRESS);
	if (AF_FN(is_mtu_error)(packet))
		COUNT_PACKET(ctx, REASON_MTU_ERROR,
			     direction == CT_INGRESS ? METRIC_INGRESS : METRIC_EGRESS,
			     METRIC_FILE_CONNTRACK);
	for (n = 0; n < 2; n++, forward = !forward) {
		if (forward)
			AF_FN(ct_forward)(packet, &work->flow, direction);
		else
			AF_FN(ct_reverse)(packet, &work->flow, direction);
		entry = AF_FN(ct_follow)(work, direction);
		if (entry) {
			path->reason = forward		 ? CT_RESULT_ESTABLISHED
				       : packet->related ? CT_RESULT_RELATED
							 : CT_RESULT_REPLY;
			return entry;
		}
		if (scope == CT_FORWARD)
			break;
	}
	path->reason = CT_RESULT_NEW;
	return NULL;
}

/* As above; counts the packet, and sends debug messages. */
static __always_inline struct ct_entry *AF_FN(ct_lookup)(CTX *ctx, struct AF_FN(work) * work,
							 __u8 direction, enum ct_scope scope)
{
	struct ct_entry *entry;

	if (DEBUGS())
		AF_FN(debug_lookup)(ctx, work, direction,
				    scope == CT_FORWARD ? DEBUG_SCOPE_FORWARD : DEBUG_SCOPE_BOTH);
	entry = AF_FN(ct_search)(ctx, work, direction, scope);
	if (DEBUGS())
		AF_FN(debug_found)(ctx, work, entry, work->path.reason);
	if (entry)
		ct_count(ctx, entry);
	return entry;
}

/* Makes the entry of a flow that this packet opens, from `fresh`. ICMP errors about it get one of
 * their own.
 */
static __always_inline int AF_FN(ct_create)(CTX *ctx, struct AF_FN(work) * work, __u8 direction,
					    int with_errors)
{
	const struct AF_FN(packet) *packet = &work->packet;
	struct AF_FN(ct_key) *key = &work->flow;
	struct ct_entry *known;
	int error;

	AF_FN(ct_forward)(packet, key, direction);
	ct_start(ctx, &work->fresh, packet->proto, direction, work->path.now);
	if (DEBUGS())
		AF_FN(debug_create)(ctx, work);
	if (with_errors && !packet->related) {
		key->dport = 0;
		key->sport = 0;
		key->proto = ICMP_PROTO;
		key->flags = direction | CT_RELATED;
		/* All flows between two addresses share it: overwriting it costs a fifth of an
		 * update, which takes another element of the map.
		 */
		known = AF_FN(ct_find)(key);
		if (known) {
			*known = work->fresh;
		} else {
			error = AF_FN(ct_write)(key, &work->fresh);
			if (error)
				return error;
		}
		AF_FN(ct_forward)(packet, key, direction);
	}
	return AF_FN(ct_write)(key, &work->fresh);
}

/* An address in the form of entries: IPv4 in the last word. */
static __always_inline void AF_FN(ct_address)(__be32 *to, AF_ADDRESS_IN address)
{
#if AF == 4
	to[3] = address;
#else
	copy6(to, address);
#endif
}
