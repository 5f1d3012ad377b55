/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Translation of one address family. */

static __always_inline void AF_FN(nat_forward)(const struct AF_FN(packet) * packet,
					       struct AF_FN(nat_key) * key)
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

/* Fills in what the entry of answers to `forward` says. */
static __always_inline void AF_FN(nat_fill_reverse)(struct AF_FN(work) * work, __u64 needs_ct)
{
	struct AF_FN(nat_entry) *reverse = &work->reverse;

	__builtin_memset(reverse, 0, sizeof(*reverse));
	reverse->created = work->path.now;
	reverse->needs_ct = needs_ct;
	AF_COPY(reverse->address, work->forward.saddr);
	reverse->port = work->forward.sport;
}

/* A process of this node has the port. */
static __noinline int AF_FN(nat_port_bound)(CTX *ctx, const struct AF_FN(nat_key) * answers)
{
	struct bpf_sock_tuple tuple = {};
	struct bpf_sock *socket;

	AF_COPY(tuple.AF_FN(ipv).saddr, answers->saddr);
	AF_COPY(tuple.AF_FN(ipv).daddr, answers->daddr);
	tuple.AF_FN(ipv).sport = answers->sport;
	tuple.AF_FN(ipv).dport = answers->dport;
	if (answers->proto == IPPROTO_TCP)
		socket = bpf_sk_lookup_tcp(ctx, &tuple, sizeof(tuple.AF_FN(ipv)),
					   BPF_F_CURRENT_NETNS, 0);
	else if (answers->proto == IPPROTO_UDP)
		socket = bpf_sk_lookup_udp(ctx, &tuple, sizeof(tuple.AF_FN(ipv)),
					   BPF_F_CURRENT_NETNS, 0);
	else
		return 0;
	if (!socket)
		return 0;
	bpf_sk_release(socket);
	return 1;
}

/* Takes the port from a flow that has expired, or, `closed`, from a connection that both sides have
 * closed: their entries wait for collection. Also if it is this flow's own, of which the map forgot
 * the other half. Returns 0, or less if the flow may live: that it is not tracked says that the map
 * forgot it.
 */
static __noinline int AF_FN(nat_take_over)(struct AF_FN(work) * work, int closed)
{
	const struct AF_FN(nat_key) *answers = &work->answers;
	const struct AF_FN(nat_entry) *taken = bpf_map_lookup_elem(&NAT, answers);
	struct AF_FN(nat_key) *other = &work->ended;
	struct AF_FN(ct_key) *flow = &work->flow;
	const struct ct_entry *entry;

	if (!taken)
		return map_update(&NAT, answers, &work->reverse, BPF_NOEXIST);
	if (AF_SAME(taken->address, work->forward.saddr) && taken->port == work->forward.sport)
		return map_update(&NAT, answers, &work->reverse, BPF_ANY);
	AF_COPY(flow->daddr, taken->address);
	AF_COPY(flow->saddr, answers->saddr);
	flow->dport = answers->sport;
	flow->sport = taken->port;
	flow->proto = answers->proto;
	flow->flags = CT_EGRESS;
	entry = AF_FN(ct_find)(flow);
	if (!entry || !(ct_is_expired(entry, work->path.now) || (closed && ct_is_closed(entry))))
		return -EEXIST;
	AF_COPY(other->daddr, answers->saddr);
	AF_COPY(other->saddr, taken->address);
	other->dport = answers->sport;
	other->sport = taken->port;
	other->proto = answers->proto;
	other->flags = NAT_FORWARD;
	bpf_map_delete_elem(&NAT, other);
	return map_update(&NAT, answers, &work->reverse, BPF_ANY);
}

/* Takes the port of `entry` for answers, if it is free; `closed` as of `nat_take_over`. A function
 * of its own for the verifier, which would follow each attempt of the loop below. Returns 0, or
 * less.
 */
GLOBAL int AF_FN(nat_attempt)(CTX *ctx, struct AF_FN(work) * work, __u32 closed)
{
	int error = -1;

	work = OWN_WORK(work);
	if (!work)
		return -EINVAL;
	AF_FN(nat_answers)(&work->forward, work->target.address, work->entry.port, &work->answers);
	/* A process's own port is its own. */
	if (work->target.needs_ct || !AF_FN(nat_port_bound)(ctx, &work->answers))
		error = map_update(&NAT, &work->answers, &work->reverse, BPF_NOEXIST);
	if (error == -EEXIST)
		error = AF_FN(nat_take_over)(work, closed);
	if (!error && options.packet.nat46x64 && AF_FN(nat_port_taken)(ctx, &work->answers)) {
		bpf_map_delete_elem(&NAT, &work->answers);
		error = -EEXIST;
	}
	return error;
}

/* Finds a free port and writes both entries. Returns less than 0 if all ports that were tried are
 * taken, or the map is full.
 */
static __noinline int AF_FN(nat_allocate)(CTX *ctx, struct AF_FN(work) * work)
{
	const struct AF_FN(nat_key) *forward = &work->forward;
	struct AF_FN(nat_entry) *entry = &work->entry;
	__be16 port = forward->sport;
	int error;
	__u32 n;

	AF_FN(nat_fill_reverse)(work, work->target.needs_ct);
	__builtin_memset(entry, 0, sizeof(*entry));
	entry->created = work->reverse.created;
	entry->needs_ct = work->target.needs_ct;
	AF_COPY(entry->address, work->target.address);
	if (!nat_port_usable(port) && forward->proto != ICMP_PROTO)
		port = nat_random_port();
	for (n = 0; n < NAT_ATTEMPTS; n++) {
		/* Its ports cannot be changed. */
		if (options.packet.sctp && forward->proto == IPPROTO_SCTP && port != forward->sport)
			break;
		entry->port = port;
		error = AF_FN(nat_attempt)(ctx, work, n >= NAT_ATTEMPTS / 2);
		if (!error) {
			error = map_update(&NAT, forward, entry, BPF_ANY);
			if (error) {
				bpf_map_delete_elem(&NAT, &work->answers);
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

/* Entry for the packet's flow, made if there is none. Returns less than 0 as `nat_allocate`. */
static __always_inline int AF_FN(nat_flow)(CTX *ctx, struct AF_FN(work) * work)
{
	const struct AF_FN(nat_key) *forward = &work->forward;
	const struct AF_FN(nat_entry) * known;

	known = bpf_map_lookup_elem(&NAT, forward);
	if (known && AF_SAME(known->address, work->target.address) &&
	    known->needs_ct == work->target.needs_ct) {
		AF_COPY(work->entry.address, known->address);
		work->entry.port = known->port;
		AF_FN(nat_answers)(forward, known->address, known->port, &work->answers);
		if (bpf_map_lookup_elem(&NAT, &work->answers))
			return 0;
		/* The map forgot one half. */
		AF_FN(nat_fill_reverse)(work, work->target.needs_ct);
		return map_update(&NAT, &work->answers, &work->reverse, BPF_ANY);
	}
	if (known) {
		AF_FN(nat_answers)(forward, known->address, known->port, &work->answers);
		bpf_map_delete_elem(&NAT, &work->answers);
		bpf_map_delete_elem(&NAT, forward);
	}
	return AF_FN(nat_allocate)(ctx, work);
}

/* The flow of a process of this node, which only the NAT entry's owner tracks. */
static __always_inline int AF_FN(nat_track)(CTX *ctx, struct AF_FN(work) * work, __u8 direction)
{
	if (AF_FN(ct_lookup)(ctx, work, direction, CT_REVERSE_FIRST) || direction == CT_INGRESS)
		return 0;
	__builtin_memset(&work->fresh, 0, sizeof(work->fresh));
	return AF_FN(ct_create)(ctx, work, CT_EGRESS, 0);
}

/* The packet inside an ICMP error: the one that caused it. */
static __always_inline int AF_FN(parse_inner)(CTX *ctx, const struct AF_FN(packet) * packet,
					      struct AF_FN(packet) * inner)
{
	struct AF_FN(ip) ip;
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
	/* It tells a service, if this node was told of one so. */
	if (inner->proto == IPPROTO_DSTOPTS) {
		if (packet_load(ctx, inner->l4, header, sizeof(header)))
			return 0;
		inner->proto = header[0];
		inner->l4 += (header[1] + 1) * 8;
	}
#endif
	if (inner->proto == ICMP_PROTO) {
		/* The id of an echo message; others have none that is translated. */
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

/* Where the transport checksum inside an ICMP error is, if so much of the packet is there; else 0.
 */
static __always_inline __u32 AF_FN(inner_checksum)(CTX *ctx, const struct AF_FN(packet) * inner,
						   __u16 *checksum)
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

/* Replaces the address and port of one side inside an ICMP error, with all checksums. */
static __noinline int AF_FN(rewrite_inner)(CTX *ctx, struct AF_FN(work) * work, enum side side,
					   AF_ADDRESS_IN address, __be16 port)
{
	const struct AF_FN(packet) *inner = &work->inner;
	__u32 header = work->packet.l4 + sizeof(struct icmp);
	__u32 at = header + (side == SOURCE ? __builtin_offsetof(struct AF_FN(ip), source)
					    : __builtin_offsetof(struct AF_FN(ip), destination));
	__be16 from_port = side == SOURCE ? inner->sport : inner->dport;
	/* What changes, before and after: address, port, checksums of the two headers. */
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
		    ctx, work->packet.l4 + ICMP_CHECKSUM, 0,
		    bpf_csum_diff((void *)&from, sizeof(from), (void *)&to, sizeof(to), 0), 0))
		return DROP_WRITE;
	return 0;
}

/* Gives the packet the target's source. Returns a drop reason, or 0. */
GLOBAL int AF_FN(nat_egress)(CTX *ctx, struct AF_FN(work) * work)
{
	struct AF_FN(packet) * packet;
	int error;

	work = OWN_WORK(work);
	if (!work)
		return DROP_INVALID;
	packet = &work->packet;
	CAPTURE(ctx, &work->path, CAPTURE_BEFORE_SNAT, packet_interface(ctx));
	AF_FN(nat_forward)(packet, &work->forward);
	error = AF_FN(nat_flow)(ctx, work);
	if (error) {
		work->path.extended_error = error;
		return DROP_NAT_NO_MAPPING;
	}
	if (work->target.needs_ct && AF_FN(nat_track)(ctx, work, CT_EGRESS))
		return DROP_CT_CREATE;
	error = AF_FN(rewrite)(ctx, packet, SOURCE, work->entry.address, work->entry.port);
	if (!error)
		CAPTURE(ctx, &work->path, CAPTURE_AFTER_SNAT, packet_interface(ctx));
	return error;
}

/* An ICMP error that this node sends on about a translated flow: its destination is the other side,
 * and the packet inside is an answer, whose destination was translated. Returns a drop reason, or
 * 0.
 */
GLOBAL int AF_FN(nat_egress_error)(CTX *ctx, struct AF_FN(work) * work)
{
	const struct AF_FN(nat_entry) * entry;
	struct AF_FN(packet) * inner;
	__u8 error;

	work = OWN_WORK(work);
	if (!work)
		return DROP_INVALID;
	inner = &work->inner;
	if (!AF_FN(parse_inner)(ctx, &work->packet, inner))
		return 0;
	AF_COPY(work->forward.daddr, inner->saddr);
	AF_COPY(work->forward.saddr, inner->daddr);
	work->forward.dport = inner->sport;
	work->forward.sport = inner->dport;
	work->forward.proto = inner->proto;
	work->forward.flags = NAT_FORWARD;
	entry = bpf_map_lookup_elem(&NAT, &work->forward);
	if (!entry)
		return 0;
	error = AF_FN(rewrite_inner)(ctx, work, DESTINATION, entry->address, entry->port);
	if (error)
		return error;
	return AF_FN(rewrite_address)(ctx, &work->packet, SOURCE, entry->address);
}

/* The map forgot that this flow is translated, but not how its answers are. */
static __always_inline void AF_FN(nat_restore)(struct AF_FN(work) * work,
					       const struct AF_FN(nat_entry) * reverse)
{
	struct AF_FN(nat_key) *original = &work->forward;
	struct AF_FN(nat_entry) *entry = &work->entry;

	AF_COPY(original->daddr, work->answers.saddr);
	AF_COPY(original->saddr, reverse->address);
	original->dport = work->answers.sport;
	original->sport = reverse->port;
	original->proto = work->answers.proto;
	original->flags = NAT_FORWARD;
	if (bpf_map_lookup_elem(&NAT, original))
		return;
	__builtin_memset(entry, 0, sizeof(*entry));
	entry->created = work->path.now;
	entry->needs_ct = reverse->needs_ct;
	AF_COPY(entry->address, work->answers.daddr);
	entry->port = work->answers.dport;
	bpf_map_update_elem(&NAT, original, entry, BPF_ANY);
}

/* How the source of what this packet answers was translated, if it was. */
static __always_inline const struct AF_FN(nat_entry) *
	AF_FN(nat_answered)(struct AF_FN(work) * work)
{
	struct AF_FN(nat_key) *key = &work->answers;

	AF_FN(nat_forward)(&work->packet, key);
	/* Other messages have no id, and look like a reply with the id 0. */
	if (key->proto == ICMP_PROTO ? work->packet.icmp_type != AF_FN(ICMP_ECHO_REPLY)
				     : !nat_port_usable(key->dport))
		return NULL;
	key->flags = NAT_REVERSE;
	return bpf_map_lookup_elem(&NAT, key);
}

/* Gives an answer the destination that it had before translation. Returns a drop reason, or 0. */
static __always_inline int AF_FN(nat_give_back)(CTX *ctx, struct AF_FN(work) * work,
						const struct AF_FN(nat_entry) * entry)
{
	AF_FN(nat_restore)(work, entry);
	return AF_FN(rewrite)(ctx, &work->packet, DESTINATION, entry->address, entry->port);
}

/* The packet inside an ICMP error, and the error's destination, as they were before translation.
 * Returns as `AF_FN(nat_ingress)`.
 */
static __always_inline int AF_FN(nat_ingress_error)(CTX *ctx, struct AF_FN(work) * work)
{
	struct AF_FN(packet) *packet = &work->packet;
	struct AF_FN(packet) *inner = &work->inner;
	struct AF_FN(nat_key) *key = &work->answers;
	const struct AF_FN(nat_entry) * entry;
	__u8 error;

	/* Inside is what was sent, with the source as it was then. */
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
	error = AF_FN(rewrite_inner)(ctx, work, SOURCE, entry->address, entry->port);
	if (error)
		return error;
	AF_COPY(inner->saddr, entry->address);
	inner->sport = entry->port;
	return AF_FN(rewrite_address)(ctx, packet, DESTINATION, entry->address);
}

/* Answers: gives the packet the destination that it had before translation. Returns a drop reason,
 * or 0; NAT_NONE if there was no translation.
 */
GLOBAL int AF_FN(nat_ingress)(CTX *ctx, struct AF_FN(work) * work)
{
	const struct AF_FN(nat_entry) * entry;

	work = OWN_WORK(work);
	if (!work)
		return DROP_INVALID;
	if (work->packet.related)
		return AF_FN(nat_ingress_error)(ctx, work);
	entry = AF_FN(nat_answered)(work);
	if (!entry)
		return NAT_NONE;
	if (entry->needs_ct && AF_FN(nat_track)(ctx, work, CT_INGRESS))
		return DROP_CT_CREATE;
	return AF_FN(nat_give_back)(ctx, work, entry);
}
