/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Conntrack entries of one address family. */

static __always_inline struct ct_entry *AF_FN(ct_find)(const ct_key_t *key)
{
	if (key->proto == IPPROTO_TCP)
		return bpf_map_lookup_elem(&AF_JOIN(cilium_ct, _global), key);
	return bpf_map_lookup_elem(&AF_JOIN(cilium_ct_any, _global), key);
}

static __always_inline int AF_FN(ct_write)(const ct_key_t *key, const struct ct_entry *entry)
{
	if (key->proto == IPPROTO_TCP)
		return map_update(&AF_JOIN(cilium_ct, _global), key, entry, BPF_ANY);
	return map_update(&AF_JOIN(cilium_ct_any, _global), key, entry, BPF_ANY);
}

/* Key of the packet's flow in its own direction. */
static __always_inline void AF_FN(ct_forward)(const packet_t *packet, ct_key_t *key, __u8 direction)
{
	AF_COPY(key->daddr, packet->saddr);
	AF_COPY(key->saddr, packet->daddr);
	key->dport = packet->dport;
	key->sport = packet->sport;
	key->proto = packet->proto;
	key->flags = direction | (packet->related ? CT_RELATED : 0);
}

/* Key of the flow that the packet is a reply of. */
static __always_inline void AF_FN(ct_reverse)(const packet_t *packet, ct_key_t *key, __u8 direction)
{
	AF_COPY(key->daddr, packet->daddr);
	AF_COPY(key->saddr, packet->saddr);
	key->dport = packet->sport;
	key->sport = packet->dport;
	key->proto = packet->proto;
	key->flags = (direction ^ CT_INGRESS) | (packet->related ? CT_RELATED : 0);
}

/* Key of the packet's service entry. */
static __always_inline void AF_FN(ct_service)(const packet_t *packet, ct_key_t *key)
{
	AF_FN(ct_reverse)(packet, key, CT_SERVICE);
	key->flags = CT_SERVICE;
}

/* Counts fragments, and stores the ports of first fragments after translation. */
static __always_inline void AF_FN(ct_fragment)(CTX *ctx, const packet_t *packet, __u8 direction)
{
	if (!packet->fragment)
		return;
	COUNT_PACKET(ctx, REASON_FRAGMENT, direction, METRIC_FILE_CONNTRACK);
	if (packet->fragment == FRAGMENT_FIRST && AF_FN(fragment_remember)(packet))
		COUNT_PACKET(ctx, REASON_FRAGMENT_UPDATE, direction, METRIC_FILE_CONNTRACK);
}

/* Debug messages: conntrack lookup in the order of `scope`. */
static __noinline void AF_FN(debug_lookup)(CTX *ctx, const scratch_t *scratch, __u8 direction,
					   __u32 scope)
{
	const packet_t *packet = &scratch->packet;
	__u8 flags = direction;

	if (direction == CT_SERVICE)
		direction = DEBUG_DIRECTION_SERVICE;
	else if (scope != DEBUG_SCOPE_FORWARD)
		flags ^= CT_INGRESS;
	if (packet->related)
		flags |= CT_RELATED;
	debug_output(ctx, &scratch->trace, AF_FN(DEBUG_CT_LOOKUP), AF_LAST(packet->saddr),
		     AF_LAST(packet->daddr),
		     (__u32)bpf_ntohs(packet->dport) << 16 | bpf_ntohs(packet->sport));
	debug_output(ctx, &scratch->trace, AF_FN(DEBUG_CT_HOW), (__u32)packet->proto << 8 | flags,
		     direction, scope);
}

/* Debug messages: result of the conntrack lookup. */
static __noinline void AF_FN(debug_found)(CTX *ctx, const scratch_t *scratch,
					  const struct ct_entry *entry, __u32 result)
{
	__u32 service = 0;

	if (entry) {
		service = entry->rev_nat_index;
		debug_output(ctx, &scratch->trace, DEBUG_CT_MATCH, entry->lifetime, service, 0);
	}
	debug_output(ctx, &scratch->trace, DEBUG_CT_VERDICT, result, service, 0);
}

/* Debug message: a new entry. */
static __noinline void AF_FN(debug_create)(CTX *ctx, const scratch_t *scratch)
{
	const struct ct_entry *entry = &scratch->fresh;

	debug_output(ctx, &scratch->trace, AF_FN(DEBUG_CT_CREATE), entry->rev_nat_index,
		     entry->source_identity,
		     AF == 4 && entry->nat_port ? entry->nat_address[3] : 0);
}

/* Returns the live entry of a flow, updated by this packet. */
static __always_inline struct ct_entry *AF_FN(ct_follow)(scratch_t *scratch, __u8 direction)
{
	const packet_t *packet = &scratch->packet;
	struct ct_entry *entry = AF_FN(ct_find)(&scratch->flow);
	__u32 now = scratch->trace.now;

	if (!entry || ct_is_expired(entry, now))
		return NULL;
	if ((entry->flags & CT_CLOSING) && packet->proto == IPPROTO_TCP &&
	    tcp_opens(packet->tcp_flags)) {
		scratch->is_reopened = 1;
		flow_note_change();
		return NULL;
	}
	scratch->trace.report = ct_touch(entry, packet->proto, direction, packet->tcp_flags, now);
	return entry;
}

static __always_inline int AF_FN(is_mtu_error)(const packet_t *packet)
{
#if AF == 4
	return packet->proto == IPPROTO_ICMP && packet->icmp_type == ICMP4_UNREACHABLE &&
	       packet->icmp_code == ICMP4_FRAGMENTATION_NEEDED && packet->related;
#else
	return packet->proto == IPPROTO_ICMPV6 && packet->icmp_type == ICMP6_TOO_BIG &&
	       packet->related;
#endif
}

/* Returns the packet's entry, or NULL for a new flow. Sets `reason` and `report` of the trace; the
 * reason is an `enum ct_result`. Not inlined: its variables would be on the stacks of its callers,
 * and all frames together have 512 bytes (in steps of 32 before 6.9).
 */
static __noinline struct ct_entry *AF_FN(ct_search)(CTX *ctx, scratch_t *scratch, __u8 direction,
						    enum ct_scope scope)
{
	const packet_t *packet = &scratch->packet;
	struct trace_ctx *trace = &scratch->trace;
	struct ct_entry *entry;
	int n, forward = scope != CT_REVERSE_FIRST;

	trace->report = 1;
	scratch->is_reopened = 0;
	AF_FN(ct_fragment)(ctx, packet, direction == CT_INGRESS ? METRIC_INGRESS : METRIC_EGRESS);
	if (AF_FN(is_mtu_error)(packet))
		COUNT_PACKET(ctx, REASON_MTU_ERROR,
			     direction == CT_INGRESS ? METRIC_INGRESS : METRIC_EGRESS,
			     METRIC_FILE_CONNTRACK);
	for (n = 0; n < 2; n++, forward = !forward) {
		if (forward)
			AF_FN(ct_forward)(packet, &scratch->flow, direction);
		else
			AF_FN(ct_reverse)(packet, &scratch->flow, direction);
		entry = AF_FN(ct_follow)(scratch, direction);
		if (entry) {
			trace->reason = forward		  ? CT_RESULT_ESTABLISHED
					: packet->related ? CT_RESULT_RELATED
							  : CT_RESULT_REPLY;
			return entry;
		}
		if (scope == CT_FORWARD)
			break;
	}
	trace->reason = CT_RESULT_NEW;
	return NULL;
}

/* As ct_search(); counts the packet and sends debug messages. */
static __always_inline struct ct_entry *AF_FN(ct_lookup)(CTX *ctx, scratch_t *scratch,
							 __u8 direction, enum ct_scope scope)
{
	struct ct_entry *entry;

	if (DEBUGS(&scratch->trace))
		AF_FN(debug_lookup)(ctx, scratch, direction,
				    scope == CT_FORWARD ? DEBUG_SCOPE_FORWARD : DEBUG_SCOPE_BOTH);
	entry = AF_FN(ct_search)(ctx, scratch, direction, scope);
	if (DEBUGS(&scratch->trace))
		AF_FN(debug_found)(ctx, scratch, entry, scratch->trace.reason);
	if (entry)
		ct_count(ctx, entry);
	return entry;
}

/* Creates the entry of a new flow from `fresh`, and with `with_errors` one of its ICMP errors. */
static __always_inline int AF_FN(ct_create)(CTX *ctx, scratch_t *scratch, __u8 direction,
					    int with_errors)
{
	const packet_t *packet = &scratch->packet;
	ct_key_t *key = &scratch->flow;
	struct ct_entry *known;
	int error;

	AF_FN(ct_forward)(packet, key, direction);
	ct_start(ctx, &scratch->fresh, packet->proto, direction, scratch->trace.now);
	if (DEBUGS(&scratch->trace))
		AF_FN(debug_create)(ctx, scratch);
	if (with_errors && !packet->related) {
		key->dport = 0;
		key->sport = 0;
		key->proto = ICMP_PROTO;
		key->flags = direction | CT_RELATED;
		/* All flows between two addresses share it: overwriting costs a fifth of an update,
		 * which allocates another element.
		 */
		known = AF_FN(ct_find)(key);
		if (known) {
			*known = scratch->fresh;
		} else {
			error = AF_FN(ct_write)(key, &scratch->fresh);
			if (error)
				return error;
		}
		AF_FN(ct_forward)(packet, key, direction);
	}
	return AF_FN(ct_write)(key, &scratch->fresh);
}

/* Address in the format of conntrack entries: IPv4 in the last word. */
static __always_inline void AF_FN(ct_address)(__be32 *to, AF_ADDRESS_IN address)
{
#if AF == 4
	to[3] = address;
#else
	copy6(to, address);
#endif
}
