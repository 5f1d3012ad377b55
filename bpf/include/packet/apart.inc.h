/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Flows of one address family that a client opens from one port to several addresses with the same
 * backend, which would take them for one. Each but the first goes on from another port of the
 * client's address. The service's entry has that port, and the entry of the flow to the backend has
 * the client's.
 */

/* The address that the packet was sent to. */
static __always_inline void AF_FN(called)(const struct AF_FN(work) * work,
					  struct AF_JOIN(lb, _reverse_nat) * to)
{
	const struct translation *translation = &work->translation;

	AF_COPY(to->address, work->key.address);
	to->port = work->key.dport;
	if (!translation->port)
		return;
#if AF == 4
	to->address = translation->address[3];
#else
	copy6(to->address, translation->address);
#endif
	to->port = translation->port;
}

/* The entry that the packet's addresses and ports have is of another flow of the client, to another
 * address. That of a service which is gone is of none.
 */
static __noinline int AF_FN(is_of_another)(const struct AF_FN(work) * work,
					   const struct ct_entry *entry)
{
	struct AF_JOIN(lb, _reverse_nat) asked ALIGNED, to ALIGNED;

	if (AF_FN(ct_client_port)(entry) != work->translation.sport)
		return 1;
	/* To the backend itself. */
	if (!entry->rev_nat_index && !entry->nat_port)
		return 1;
	if (!AF_FN(service_of)(entry, &to))
		return 0;
	AF_FN(called)(work, &asked);
	return !AF_SAME(to.address, asked.address) || to.port != asked.port;
}

/* The entry is of the flow that the packet is of, to the same service. */
static __always_inline int AF_FN(is_same_flow)(const struct AF_FN(work) * work,
					       const struct ct_entry *entry)
{
	return entry->rev_nat_index == work->translation.rev_nat_index &&
	       AF_FN(ct_client_port)(entry) == work->translation.sport;
}

/* The entry that a SYN does not follow, as one side has closed the connection: the other may still
 * send.
 */
static __always_inline const struct ct_entry *AF_FN(half_closed)(const struct AF_FN(work) * work)
{
	const struct ct_entry *entry = work->reopens ? AF_FN(ct_find)(&work->flow) : NULL;

	return entry && !ct_is_closed(entry) ? entry : NULL;
}

/* Neither the backend nor the client has a flow from this port. */
static __always_inline int AF_FN(is_free)(struct AF_FN(ct_key) * flow, __u32 now)
{
	const struct ct_entry *entry;

	flow->flags = CT_INGRESS;
	entry = AF_FN(ct_find)(flow);
	if (entry && !ct_is_expired(entry, now))
		return 0;
	flow->flags = CT_EGRESS;
	entry = AF_FN(ct_find)(flow);
	return !entry || ct_is_expired(entry, now);
}

#define OWN_PORT_ATTEMPTS 8

/* Gives the packet's flow, whose entry is of another one, a port of its own. Returns a drop reason,
 * or 0.
 */
GLOBAL int AF_FN(take_own_port)(CTX *ctx, struct AF_FN(work) * work)
{
	struct AF_JOIN(lb, _reverse_nat) asked ALIGNED;
	struct AF_FN(ct_key) * flow;
	struct AF_FN(packet) * packet;
	struct ct_entry *service;
	struct translation *to;
	__be16 port;
	int n;

	work = OWN_WORK(work);
	if (!work)
		return DROP_INVALID;
	packet = &work->packet;
	flow = &work->flow;
	to = &work->translation;
	/* Ports of SCTP cannot be changed. An entry that remembers an address of IPv6 has no room.
	 */
	if ((packet->proto != IPPROTO_TCP && packet->proto != IPPROTO_UDP) ||
	    (AF == 6 && to->port && to->rev_nat_index))
		return DROP_NAT_NO_MAPPING;
	AF_FN(ct_forward)(packet, flow, CT_EGRESS);
	for (n = 0; n < OWN_PORT_ATTEMPTS; n++) {
		flow->sport = nat_random_port();
		if (AF_FN(is_free)(flow, work->path.now))
			break;
	}
	if (n == OWN_PORT_ATTEMPTS)
		return DROP_NAT_NO_MAPPING;
	port = flow->sport;
	if (!to->sport)
		to->sport = packet->sport;

	AF_FN(called)(work, &asked);
	AF_COPY(flow->daddr, asked.address);
	AF_COPY(flow->saddr, packet->saddr);
	if (to->loopback)
		AF_COPY(flow->saddr, work->sender.AF_FN(ipv));
	flow->dport = to->sport;
	flow->sport = asked.port;
	flow->flags = CT_SERVICE;
	service = AF_FN(ct_find)(flow);
	if (service && service->rev_nat_index == to->rev_nat_index) {
		service->nat_port = port;
	} else if (!to->rev_nat_index) {
		/* Another node selected the backend. */
		service = &work->fresh;
		__builtin_memset(service, 0, sizeof(*service));
		service->nat_port = port;
		ct_begin(service, packet_options(), packet->proto, CT_SERVICE, work->path.now);
		if (AF_FN(ct_write)(flow, service))
			return DROP_CT_CREATE;
	}
	n = AF_FN(rewrite)(ctx, packet, SOURCE, packet->saddr, port);
	if (!n && packet->fragment == FRAGMENT_FIRST)
		AF_FN(fragment_remember)(packet);
	return n;
}
