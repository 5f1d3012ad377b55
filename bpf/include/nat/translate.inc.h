/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Translation of one address family. */

static __always_inline void AF_FN(nat_forward)(const packet_t *packet, nat_key_t *key)
{
	AF_COPY(key->daddr, packet->daddr);
	AF_COPY(key->saddr, packet->saddr);
	key->dport = packet->dport;
	key->sport = packet->sport;
	key->proto = packet->proto;
	key->flags = NAT_FORWARD;
}

static __always_inline void AF_FN(nat_count)(__u32 collisions)
{
	__u32 *count = bpf_map_lookup_elem(&NAT_RETRIES, &collisions);

	if (count)
		(*count)++;
}

/* Fills in the reverse entry of `forward`. */
static __always_inline void AF_FN(nat_fill_reverse)(scratch_t *scratch, __u64 needs_ct)
{
	nat_entry_t *reverse = &scratch->reverse;

	flow_note_change();
	__builtin_memset(reverse, 0, sizeof(*reverse));
	reverse->created = scratch->trace.now;
	reverse->needs_ct = needs_ct;
	AF_COPY(reverse->address, scratch->forward.saddr);
	reverse->port = scratch->forward.sport;
}

/* The port is bound by a process of this node. */
static __noinline int AF_FN(nat_port_bound)(CTX *ctx, const nat_key_t *reverse_key)
{
	struct bpf_sock_tuple tuple = {};
	struct bpf_sock *socket;

	AF_COPY(tuple.AF_FN(ipv).saddr, reverse_key->saddr);
	AF_COPY(tuple.AF_FN(ipv).daddr, reverse_key->daddr);
	tuple.AF_FN(ipv).sport = reverse_key->sport;
	tuple.AF_FN(ipv).dport = reverse_key->dport;
	if (reverse_key->proto == IPPROTO_TCP)
		socket = bpf_sk_lookup_tcp(ctx, &tuple, sizeof(tuple.AF_FN(ipv)),
					   BPF_F_CURRENT_NETNS, 0);
	else if (reverse_key->proto == IPPROTO_UDP)
		socket = bpf_sk_lookup_udp(ctx, &tuple, sizeof(tuple.AF_FN(ipv)),
					   BPF_F_CURRENT_NETNS, 0);
	else
		return 0;
	if (!socket)
		return 0;
	bpf_sk_release(socket);
	return 1;
}

/* Takes over the port of an expired flow, or with `closed` of a closed connection, before garbage
 * collection; also the flow's own port if its other entry was evicted. Returns 0, or less if the
 * flow may be alive: an untracked flow may have been evicted from conntrack.
 */
static __noinline int AF_FN(nat_take_over)(scratch_t *scratch, int closed)
{
	const nat_key_t *reverse_key = &scratch->reverse_key;
	const nat_entry_t *taken = bpf_map_lookup_elem(&NAT, reverse_key);
	nat_key_t *other = &scratch->ended;
	ct_key_t *flow = &scratch->flow;
	const struct ct_entry *entry;

	if (!taken)
		return map_update(&NAT, reverse_key, &scratch->reverse, BPF_NOEXIST);
	if (AF_SAME(taken->address, scratch->forward.saddr) &&
	    taken->port == scratch->forward.sport)
		return map_update(&NAT, reverse_key, &scratch->reverse, BPF_ANY);
	AF_COPY(flow->daddr, taken->address);
	AF_COPY(flow->saddr, reverse_key->saddr);
	flow->dport = reverse_key->sport;
	flow->sport = taken->port;
	flow->proto = reverse_key->proto;
	flow->flags = CT_EGRESS;
	entry = AF_FN(ct_find)(flow);
	if (!entry ||
	    !(ct_is_expired(entry, scratch->trace.now) || (closed && ct_is_closed(entry))))
		return -EEXIST;
	AF_COPY(other->daddr, reverse_key->saddr);
	AF_COPY(other->saddr, taken->address);
	other->dport = reverse_key->sport;
	other->sport = taken->port;
	other->proto = reverse_key->proto;
	other->flags = NAT_FORWARD;
	bpf_map_delete_elem(&NAT, other);
	flow_raise_epoch();
	return map_update(&NAT, reverse_key, &scratch->reverse, BPF_ANY);
}

/* Allocates the port of `entry` if it is free; `closed` as in `nat_take_over`. Not inlined: the
 * verifier would explore each attempt of the loop below. Returns 0, or less.
 */
GLOBAL int AF_FN(nat_attempt)(CTX *ctx, scratch_t *scratch, __u32 closed)
{
	int error = -1;

	scratch = OWN_SCRATCH(scratch);
	if (!scratch)
		return -EINVAL;
	AF_FN(nat_reverse_key)(&scratch->forward, scratch->target.address, scratch->entry.port,
			       &scratch->reverse_key);
	/* A process's own port is its own. */
	if (scratch->target.needs_ct || !AF_FN(nat_port_bound)(ctx, &scratch->reverse_key))
		error = map_update(&NAT, &scratch->reverse_key, &scratch->reverse, BPF_NOEXIST);
	if (error == -EEXIST)
		error = AF_FN(nat_take_over)(scratch, closed);
	if (!error && options.packet.nat46x64 &&
	    AF_FN(nat_port_taken)(ctx, &scratch->reverse_key)) {
		bpf_map_delete_elem(&NAT, &scratch->reverse_key);
		error = -EEXIST;
	}
	return error;
}

/* Allocates a port and writes both entries. Returns less than 0 if all attempts failed or the map
 * is full.
 */
static __noinline int AF_FN(nat_allocate)(CTX *ctx, scratch_t *scratch)
{
	const nat_key_t *forward = &scratch->forward;
	nat_entry_t *entry = &scratch->entry;
	__be16 port = forward->sport;
	int error;
	__u32 n;

	AF_FN(nat_fill_reverse)(scratch, scratch->target.needs_ct);
	__builtin_memset(entry, 0, sizeof(*entry));
	entry->created = scratch->reverse.created;
	entry->needs_ct = scratch->target.needs_ct;
	AF_COPY(entry->address, scratch->target.address);
	if (!nat_port_usable(port) && forward->proto != ICMP_PROTO)
		port = nat_random_port();
	for (n = 0; n < NAT_ATTEMPTS; n++) {
		/* Its ports cannot be changed. */
		if (options.packet.sctp && forward->proto == IPPROTO_SCTP && port != forward->sport)
			break;
		entry->port = port;
		error = AF_FN(nat_attempt)(ctx, scratch, n >= NAT_ATTEMPTS / 2);
		if (!error) {
			error = map_update(&NAT, forward, entry, BPF_ANY);
			if (error) {
				bpf_map_delete_elem(&NAT, &scratch->reverse_key);
				return error;
			}
			AF_FN(nat_count)(n);
			if (n > NAT_ATTEMPTS / 2)
				signal_send(ctx, SIGNAL_NAT_FULL, AF == 6);
			return 0;
		}
		port = n ? nat_next_port(port) : nat_random_port();
	}
	AF_FN(nat_count)(NAT_ATTEMPTS);
	signal_send(ctx, SIGNAL_NAT_FULL, AF == 6);
	return -1;
}

/* Looks up or creates the NAT entry of the packet's flow. Returns less than 0 as `nat_allocate`. */
static __always_inline int AF_FN(nat_flow)(CTX *ctx, scratch_t *scratch)
{
	const nat_key_t *forward = &scratch->forward;
	const nat_entry_t *known;

	known = bpf_map_lookup_elem(&NAT, forward);
	if (known && AF_SAME(known->address, scratch->target.address) &&
	    known->needs_ct == scratch->target.needs_ct) {
		AF_COPY(scratch->entry.address, known->address);
		scratch->entry.port = known->port;
		AF_FN(nat_reverse_key)(forward, known->address, known->port, &scratch->reverse_key);
		if (bpf_map_lookup_elem(&NAT, &scratch->reverse_key))
			return 0;
		/* The map forgot one half. */
		AF_FN(nat_fill_reverse)(scratch, scratch->target.needs_ct);
		return map_update(&NAT, &scratch->reverse_key, &scratch->reverse, BPF_ANY);
	}
	if (known) {
		AF_FN(nat_reverse_key)(forward, known->address, known->port, &scratch->reverse_key);
		bpf_map_delete_elem(&NAT, &scratch->reverse_key);
		bpf_map_delete_elem(&NAT, forward);
		flow_raise_epoch();
	}
	return AF_FN(nat_allocate)(ctx, scratch);
}

/* Tracks the flow of a process of this node. */
static __always_inline int AF_FN(nat_track)(CTX *ctx, scratch_t *scratch, __u8 direction)
{
	if (AF_FN(ct_lookup)(ctx, scratch, direction, CT_REVERSE_FIRST) || direction == CT_INGRESS)
		return 0;
	__builtin_memset(&scratch->fresh, 0, sizeof(scratch->fresh));
	return AF_FN(ct_create)(ctx, scratch, CT_EGRESS, 0);
}

/* The packet inside an ICMP error: the one that caused it. */
static __always_inline int AF_FN(parse_inner)(CTX *ctx, const packet_t *packet, packet_t *inner)
{
	ip_t ip;
#if AF == 6
	__u8 header[2]; /* protocol, length */
#endif
	__be16 ports[2];
	__u32 offset = packet->l4 + sizeof(struct icmp);

	__builtin_memset(inner, 0, sizeof(*inner));
	if (packet_load(ctx, offset, &ip, sizeof(ip)))
		return 0;
	AF_COPY(inner->saddr, ip.source);
	AF_COPY(inner->daddr, ip.destination);
	inner->proto = ip.proto;
#if AF == 4
	inner->l4 = offset + (ip.version_ihl & 0xf) * 4;
#else
	inner->l4 = offset + sizeof(ip);
	/* It has the DSR option if the packet had one. */
	if (inner->proto == IPPROTO_DSTOPTS) {
		if (packet_load(ctx, inner->l4, header, sizeof(header)))
			return 0;
		inner->proto = header[0];
		inner->l4 += (header[1] + 1) * 8;
	}
#endif
	if (inner->proto == ICMP_PROTO) {
		/* Only echo messages have an id that is translated. */
		if (packet_load(ctx, inner->l4 + 4, ports, sizeof(ports)))
			return 0;
		inner->sport = ports[0];
		return 1;
	}
	if (!has_ports(inner->proto) || packet_load(ctx, inner->l4, ports, sizeof(ports)))
		return 0;
	inner->sport = ports[0];
	inner->dport = ports[1];
	return 1;
}

/* Offset of the transport checksum in the packet of an ICMP error; 0 if truncated. */
static __always_inline __u32 AF_FN(inner_checksum)(CTX *ctx, const packet_t *inner, __u16 *checksum)
{
	__u32 at = inner->l4;

	if (inner->proto == IPPROTO_TCP)
		at += TCP_CHECKSUM;
	else if (inner->proto == IPPROTO_UDP)
		at += UDP_CHECKSUM;
	else if (inner->proto == IPPROTO_SCTP)
		return 0; /* It does not cover addresses. */
	else
		at += ICMP_CHECKSUM;
	if (packet_load(ctx, at, checksum, sizeof(*checksum)))
		return 0;
	return inner->proto == IPPROTO_UDP && !*checksum ? 0 : at;
}

/* Rewrites address and port of one side in the packet of an ICMP error, with all checksums. */
static __noinline int AF_FN(rewrite_inner)(CTX *ctx, scratch_t *scratch, enum side side,
					   AF_ADDRESS_IN address, __be16 port)
{
	const packet_t *inner = &scratch->inner;
	__u32 header = scratch->packet.l4 + sizeof(struct icmp);
	__u32 at = header + (side == SOURCE ? __builtin_offsetof(ip_t, source)
					    : __builtin_offsetof(ip_t, destination));
	__be16 from_port = side == SOURCE ? inner->sport : inner->dport;
	/* Changed words, before and after: address, port, checksums of the two headers. */
	struct {
		AF_ADDRESS(address);
		__be16 port;
		__u16 transport;
		__u16 network;
		__u16 pad;
	} from = {.port = from_port}, to = {.port = port};
	__u32 checksum_at;

	if (side == SOURCE)
		AF_COPY(from.address, inner->saddr);
	else
		AF_COPY(from.address, inner->daddr);
	AF_COPY(to.address, address);
	checksum_at = AF_FN(inner_checksum)(ctx, inner, &from.transport);
	if (checksum_at) {
		to.transport = from.transport;
		/* Without the address where no pseudo header is covered. */
		if (AF == 6 || inner->proto != ICMP_PROTO)
			to.transport = checksum_replace_all(to.transport, &from.address,
							    &to.address, sizeof(to.address));
		to.transport = checksum_replace(to.transport, from.port, to.port);
		if (packet_store(ctx, checksum_at, &to.transport, sizeof(to.transport)))
			return DROP_WRITE;
	} else {
		from.transport = 0;
	}
#if AF == 4
	if (packet_load(ctx, header + __builtin_offsetof(struct ip4, checksum), &from.network,
			sizeof(from.network)))
		return DROP_WRITE;
	to.network = checksum_replace(from.network, from.address, to.address);
	if (packet_store(ctx, header + __builtin_offsetof(struct ip4, checksum), &to.network,
			 sizeof(to.network)))
		return DROP_WRITE;
#endif
	if (packet_store(ctx, at, &to.address, sizeof(to.address)))
		return DROP_WRITE;
	at = inner->l4;
	if (inner->proto == ICMP_PROTO)
		at += 4;
	else if (side == DESTINATION)
		at += 2;
	if (packet_store(ctx, at, &to.port, sizeof(to.port)) ||
	    replace_l4_checksum(
		    ctx, scratch->packet.l4 + ICMP_CHECKSUM, 0,
		    bpf_csum_diff((void *)&from, sizeof(from), (void *)&to, sizeof(to), 0), 0))
		return DROP_WRITE;
	return 0;
}

/* Applies SNAT to the packet. Returns a drop reason, or 0. */
GLOBAL int AF_FN(nat_egress)(CTX *ctx, scratch_t *scratch)
{
	packet_t *packet;
	int error;

	scratch = OWN_SCRATCH(scratch);
	if (!scratch)
		return DROP_INVALID;
	packet = &scratch->packet;
	CAPTURE(ctx, &scratch->trace, CAPTURE_BEFORE_SNAT, packet_interface(ctx));
	AF_FN(nat_forward)(packet, &scratch->forward);
	error = AF_FN(nat_flow)(ctx, scratch);
	if (error) {
		scratch->trace.extended_error = error;
		return DROP_NAT_NO_MAPPING;
	}
	if (scratch->target.needs_ct && AF_FN(nat_track)(ctx, scratch, CT_EGRESS))
		return DROP_CT_CREATE;
	error = AF_FN(rewrite)(ctx, packet, SOURCE, scratch->entry.address, scratch->entry.port);
	if (!error)
		CAPTURE(ctx, &scratch->trace, CAPTURE_AFTER_SNAT, packet_interface(ctx));
	return error;
}

/* Applies SNAT to an ICMP error about a translated flow: its inner packet is a reply whose
 * destination was translated. Returns a drop reason, or 0.
 */
GLOBAL int AF_FN(nat_egress_error)(CTX *ctx, scratch_t *scratch)
{
	const nat_entry_t *entry;
	packet_t *inner;
	__u8 error;

	scratch = OWN_SCRATCH(scratch);
	if (!scratch)
		return DROP_INVALID;
	inner = &scratch->inner;
	if (!AF_FN(parse_inner)(ctx, &scratch->packet, inner))
		return 0;
	AF_COPY(scratch->forward.daddr, inner->saddr);
	AF_COPY(scratch->forward.saddr, inner->daddr);
	scratch->forward.dport = inner->sport;
	scratch->forward.sport = inner->dport;
	scratch->forward.proto = inner->proto;
	scratch->forward.flags = NAT_FORWARD;
	entry = bpf_map_lookup_elem(&NAT, &scratch->forward);
	if (!entry)
		return 0;
	error = AF_FN(rewrite_inner)(ctx, scratch, DESTINATION, entry->address, entry->port);
	if (error)
		return error;
	return AF_FN(rewrite_address)(ctx, &scratch->packet, SOURCE, entry->address);
}

/* The forward entry was evicted, the reverse entry was not. */
static __always_inline void AF_FN(nat_restore)(scratch_t *scratch, const nat_entry_t *reverse)
{
	nat_key_t *original = &scratch->forward;
	nat_entry_t *entry = &scratch->entry;

	AF_COPY(original->daddr, scratch->reverse_key.saddr);
	AF_COPY(original->saddr, reverse->address);
	original->dport = scratch->reverse_key.sport;
	original->sport = reverse->port;
	original->proto = scratch->reverse_key.proto;
	original->flags = NAT_FORWARD;
	if (bpf_map_lookup_elem(&NAT, original))
		return;
	flow_stop();
	__builtin_memset(entry, 0, sizeof(*entry));
	entry->created = scratch->trace.now;
	entry->needs_ct = reverse->needs_ct;
	AF_COPY(entry->address, scratch->reverse_key.daddr);
	entry->port = scratch->reverse_key.dport;
	bpf_map_update_elem(&NAT, original, entry, BPF_ANY);
}

/* Looks up the reverse entry of the packet. */
static __always_inline const nat_entry_t *AF_FN(nat_find_reverse)(scratch_t *scratch)
{
	nat_key_t *key = &scratch->reverse_key;
	const nat_entry_t *entry;

	AF_FN(nat_forward)(&scratch->packet, key);
	/* Other messages have no id, and look like a reply with the id 0. */
	if (key->proto == ICMP_PROTO ? scratch->packet.icmp_type != AF_FN(ICMP_ECHO_REPLY)
				     : !nat_port_usable(key->dport))
		return NULL;
	key->flags = NAT_REVERSE;
	entry = bpf_map_lookup_elem(&NAT, key);
	if (!entry)
		flow_note_untranslated();
	return entry;
}

/* Reverse-translates the destination of a reply. Returns a drop reason, or 0. */
static __always_inline int AF_FN(nat_reverse_translate)(CTX *ctx, scratch_t *scratch,
							const nat_entry_t *entry)
{
	AF_FN(nat_restore)(scratch, entry);
	return AF_FN(rewrite)(ctx, &scratch->packet, DESTINATION, entry->address, entry->port);
}

/* Reverse-translates an ICMP error and its inner packet. Returns as `AF_FN(nat_ingress)`. */
static __always_inline int AF_FN(nat_ingress_error)(CTX *ctx, scratch_t *scratch)
{
	packet_t *packet = &scratch->packet;
	packet_t *inner = &scratch->inner;
	nat_key_t *key = &scratch->reverse_key;
	const nat_entry_t *entry;
	__u8 error;

	/* The inner packet has the translated source. */
	if (!AF_FN(parse_inner)(ctx, packet, inner))
		return NAT_NONE;
	AF_COPY(key->daddr, inner->saddr);
	AF_COPY(key->saddr, inner->daddr);
	key->dport = inner->sport;
	key->sport = inner->dport;
	key->proto = inner->proto;
	key->flags = NAT_REVERSE;
	entry = bpf_map_lookup_elem(&NAT, key);
	if (!entry)
		return NAT_NONE;
	error = AF_FN(rewrite_inner)(ctx, scratch, SOURCE, entry->address, entry->port);
	if (error)
		return error;
	AF_COPY(inner->saddr, entry->address);
	inner->sport = entry->port;
	return AF_FN(rewrite_address)(ctx, packet, DESTINATION, entry->address);
}

/* Reverse-translates a reply. Returns a drop reason, or 0; NAT_NONE without translation. */
GLOBAL int AF_FN(nat_ingress)(CTX *ctx, scratch_t *scratch)
{
	const nat_entry_t *entry;

	scratch = OWN_SCRATCH(scratch);
	if (!scratch)
		return DROP_INVALID;
	if (scratch->packet.related)
		return AF_FN(nat_ingress_error)(ctx, scratch);
	entry = AF_FN(nat_find_reverse)(scratch);
	if (!entry)
		return NAT_NONE;
	if (entry->needs_ct && AF_FN(nat_track)(ctx, scratch, CT_INGRESS))
		return DROP_CT_CREATE;
	return AF_FN(nat_reverse_translate)(ctx, scratch, entry);
}
