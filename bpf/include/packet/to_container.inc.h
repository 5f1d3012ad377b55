/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Packets of one address family that leave by the interface of a pod. */

/* A packet for the pod behind this interface, which came as `how` says. Returns a verdict, or less:
 * a drop reason.
 */
GLOBAL int AF_FN(to_endpoint)(CTX *ctx, struct AF_FN(work) * work, __u32 how)
{
#if AF == 6
	struct packet6 *packet;
#endif
	struct path *path;
	__u8 broken;
	int error;

	work = OWN_WORK(work);
	if (!work)
		return -DROP_INVALID;
	path = &work->path;
	broken = AF_FN(read_packet)(ctx, work);
	if (broken)
		return FAIL(path, broken);
#if AF == 6
	packet = &work->packet;
	/* Neighbour discovery between kernel and pod: packets that were forwarded do not have this
	 * hop limit (RFC 4861 7.1).
	 */
	if (packet->proto == IPPROTO_ICMPV6 && packet->hop_limit == 255 &&
	    (packet->icmp_type == ICMP6_SOLICITATION || packet->icmp_type == ICMP6_ADVERTISEMENT))
		return TC_ACT_OK;
	/* So are its reports of multicast groups, which no router forwards (RFC 4291 2.7). */
	if (packet->proto == IPPROTO_ICMPV6 && packet->icmp_type == ICMP6_LISTENER_REPORT &&
	    is_link_multicast(packet->daddr))
		return TC_ACT_OK;
#endif
	AF_FN(resolve_sender)(work);
	path->source_identity = AF_FN(host_identity)(ctx, work);
	work->way.ifindex = ctx->ifindex;
	error = AF_FN(receive)(ctx, work, how);
	return error ? error : TC_ACT_OK;
}
