/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Ways of packets of one address family at the interface of the tunnel. */

/* A packet that came by the tunnel. Returns a verdict, or less: a drop reason. */
GLOBAL int AF_FN(from_overlay)(CTX *ctx, struct AF_FN(work) * work)
{
	const struct ipcache_value *sender;
	struct AF_FN(packet) * packet;
	const struct lxc_value *local;
	struct path *path;
	int verdict = 0;
	__u8 broken;

	work = OWN_WORK(work);
	if (!work)
		return -DROP_INVALID;
	path = &work->path;
	packet = &work->packet;
	broken = AF_FN(read_packet)(ctx, work);
	if (broken)
		return FAIL(path, broken);
	/* Which of the nodes: the API server's has an identity of its own. */
	if (path->source_identity == IDENTITY_REMOTE_NODE) {
		sender = AF_FN(ipcache_lookup)(packet->saddr);
		if (sender && sender->identity != IDENTITY_HOST)
			path->source_identity = sender->identity;
	}
	if (has_ports(packet->proto) && packet->error)
		return FAIL(path, packet->error);
	local = AF_FN(lxc_lookup)(packet->daddr);
	work->translated_back = 0;
	if (!local || (local->flags & LXC_HOST)) {
		verdict = AF_FN(from_network_node)(ctx, work, local != NULL);
		if (verdict && verdict != TC_ACT_PIPE)
			return verdict;
		/* An answer may be for a pod. */
		if (work->translated_back)
			local = AF_FN(lxc_lookup)(packet->daddr);
	}
	if (!verdict && local && !(local->flags & (LXC_HOST | LXC_AT_HOST_NS)))
		return AF_FN(deliver)(ctx, work, local, FROM_NETWORK);
	return give_to_host(ctx, path);
}

/* A packet that is about to go by the tunnel. Returns a verdict, or less: a drop reason. */
GLOBAL int AF_FN(to_overlay)(CTX *ctx, struct AF_FN(work) * work)
{
	struct AF_FN(packet) * packet;
	struct path *path;
	AF_ADDRESS(router);
	int error;

	work = OWN_WORK(work);
	if (!work)
		return -DROP_INVALID;
	path = &work->path;
	packet = &work->packet;
	/* Invalid packets of the node itself are not dropped here. */
	if (AF_FN(read_packet)(ctx, work) || packet->ct_error)
		return TC_ACT_OK;
	error = AF_FN(answer_client)(ctx, work);
	if (error)
		return error < 0 ? error : TC_ACT_OK;
	AF_COPY(router, packet_options()->AF_FN(router));
	if (!AF_SAME(packet->saddr, router))
		return TC_ACT_OK;
	/* The node's own packets have the source of translated ones: they reserve their ports, so
	 * that SNAT allocates others.
	 */
	if (packet->proto == ICMP_PROTO) {
		if (packet->icmp_type != (AF == 4 ? ICMP4_ECHO : ICMP6_ECHO))
			return TC_ACT_OK;
	} else if (!nat_port_usable(packet->sport)) {
		return TC_ACT_OK;
	}
	AF_COPY(work->target.address, router);
	work->target.needs_ct = 1;
	error = AF_FN(nat_egress)(ctx, work);
	return error ? FAIL(path, error) : TC_ACT_OK;
}
