/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Collisions of flows of one address family: a client connects from one port to several frontends
 * with the same backend. Each flow but the first gets another source port, stored in the service
 * entry; the entry of the flow to the backend has the original one.
 */

/* Destination of the packet before translation. */
static __always_inline void AF_FN(original_destination)(const scratch_t *scratch,
							lb_reverse_nat_t *to)
{
	const struct translation *translation = &scratch->translation;

	AF_COPY(to->address, scratch->key.address);
	to->port = scratch->key.dport;
	if (!translation->port)
		return;
	AF_FROM_WORDS(to->address, translation->address);
	to->port = translation->port;
}

/* The entry belongs to another flow of the client, to another frontend. An entry of a deleted
 * service belongs to none.
 */
static __noinline int AF_FN(is_other_service)(const scratch_t *scratch,
					      const struct ct_entry *entry)
{
	lb_reverse_nat_t asked ALIGNED, to ALIGNED;

	if (AF_FN(ct_client_port)(entry) != scratch->translation.sport)
		return 1;
	/* To the backend itself. */
	if (!entry->rev_nat_index && !entry->nat_port)
		return 1;
	if (!AF_FN(service_of)(entry, &to))
		return 0;
	AF_FN(original_destination)(scratch, &asked);
	return !AF_SAME(to.address, asked.address) || to.port != asked.port;
}

/* The entry belongs to the packet's flow to the same service. */
static __always_inline int AF_FN(is_same_flow)(const scratch_t *scratch,
					       const struct ct_entry *entry)
{
	return entry->rev_nat_index == scratch->translation.rev_nat_index &&
	       AF_FN(ct_client_port)(entry) == scratch->translation.sport;
}

/* The entry of a half-closed connection, which a SYN does not reuse. */
static __always_inline const struct ct_entry *AF_FN(half_closed)(const scratch_t *scratch)
{
	const struct ct_entry *entry = scratch->is_reopened ? AF_FN(ct_find)(&scratch->flow) : NULL;

	return entry && !ct_is_closed(entry) ? entry : NULL;
}

/* The port is free for the flow to the backend. */
static __always_inline int AF_FN(is_free)(ct_key_t *flow, __u32 now)
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

/* Allocates a source port for a colliding flow. Returns a drop reason, or 0. */
GLOBAL int AF_FN(allocate_client_port)(CTX *ctx, scratch_t *scratch)
{
	lb_reverse_nat_t asked ALIGNED;
	ct_key_t *flow;
	packet_t *packet;
	struct ct_entry *service;
	struct translation *to;
	__be16 port;
	int n;

	scratch = OWN_SCRATCH(scratch);
	if (!scratch)
		return DROP_INVALID;
	packet = &scratch->packet;
	flow = &scratch->flow;
	to = &scratch->translation;
	/* SCTP ports cannot be translated. Entries with an IPv6 address have no room. */
	if ((packet->proto != IPPROTO_TCP && packet->proto != IPPROTO_UDP) ||
	    (AF == 6 && to->port && to->rev_nat_index))
		return DROP_NAT_NO_MAPPING;
	AF_FN(ct_forward)(packet, flow, CT_EGRESS);
	for (n = 0; n < OWN_PORT_ATTEMPTS; n++) {
		flow->sport = nat_random_port();
		if (AF_FN(is_free)(flow, scratch->trace.now))
			break;
	}
	if (n == OWN_PORT_ATTEMPTS)
		return DROP_NAT_NO_MAPPING;
	port = flow->sport;
	if (!to->sport)
		to->sport = packet->sport;

	AF_FN(original_destination)(scratch, &asked);
	AF_COPY(flow->daddr, asked.address);
	AF_COPY(flow->saddr, packet->saddr);
	if (to->loopback)
		AF_COPY(flow->saddr, scratch->sender.AF_FN(ipv));
	flow->dport = to->sport;
	flow->sport = asked.port;
	flow->flags = CT_SERVICE;
	service = AF_FN(ct_find)(flow);
	flow_raise_epoch();
	if (service && service->rev_nat_index == to->rev_nat_index) {
		service->nat_port = port;
	} else if (!to->rev_nat_index) {
		/* Another node selected the backend. */
		service = &scratch->fresh;
		__builtin_memset(service, 0, sizeof(*service));
		service->nat_port = port;
		ct_begin(service, packet_options(), packet->proto, CT_SERVICE, scratch->trace.now);
		if (AF_FN(ct_write)(flow, service))
			return DROP_CT_CREATE;
	}
	n = AF_FN(rewrite)(ctx, packet, SOURCE, packet->saddr, port);
	if (!n && packet->fragment == FRAGMENT_FIRST)
		AF_FN(fragment_remember)(packet);
	return n;
}
