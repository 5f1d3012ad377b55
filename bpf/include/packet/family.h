/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Ways of packets that have changed their address family. */
#ifndef PACKET_FAMILY_H
#define PACKET_FAMILY_H

#include "host.h"

/* To the receiver of a packet that is of IPv4 now. Returns a verdict, or less: a drop reason. */
GLOBAL int now_of4(CTX *ctx, struct work4 *work)
{
	const struct lxc_value *local;
	struct packet4 *packet;
	struct path *path;
	int error;

	work = OWN_WORK(work);
	if (!work || !options.packet.nat46x64)
		return -DROP_NAT64;
	path = &work->path;
	packet = &work->packet;
	path->ipv6 = 0;
	if (parse4(ctx, packet))
		return FAIL(path, DROP_NAT64);
	local = lxc_lookup4(packet->daddr);
	/* The kernel takes no packets from the node's own address. */
	if (local && (local->flags & (LXC_HOST | LXC_AT_HOST_NS)))
		return FAIL(path, DROP_NAT64);
	if (local)
		return deliver4(ctx, work, local, FROM_SERVICE);
	mark_snat_done(ctx);
	if (options.packet.tunnel) {
		find_peer4(ctx, work, packet->daddr);
		if (is_tunnelled(&work->peer)) {
			error = hop4(ctx, packet, path);
			if (error)
				return error;
			return encapsulate(ctx, path, &work->peer, IDENTITY_WORLD);
		}
	}
	return route4(ctx, work, 1);
}

/* On to the network, as the routes say. */
GLOBAL int now_of6(CTX *ctx, struct work6 *work)
{
	struct path *path;

	work = OWN_WORK(work);
	if (!work || !options.packet.nat46x64)
		return -DROP_NAT46;
	path = &work->path;
	path->ipv6 = 1;
	if (parse6(ctx, &work->packet))
		return FAIL(path, DROP_NAT46);
	mark_snat_done(ctx);
	return route6(ctx, work, 1);
}

/* What becomes of a packet with this verdict, if it changed its family. */
static __always_inline int after_family(CTX *ctx, union work *work, int verdict)
{
	if (!options.packet.nat46x64)
		return verdict;
	if (verdict == GOES_ON_AS_6) {
		work->v6.path.ipv6 = 1;
		work->v6.is_unpacked = 0;
#ifdef PACKET_OVERLAY
		verdict = from_overlay6(ctx, &work->v6);
#else
		verdict = from_network6(ctx, &work->v6);
#endif
		/* It was made one of IPv6 for what is not there any more. */
		return verdict == GOES_ON_AS_4 ? FAIL(&work->v6.path, DROP_NAT46) : verdict;
	}
	if (verdict == ROUTES_AS_6)
		return now_of6(ctx, &work->v6);
	if (verdict == GOES_ON_AS_4)
		return now_of4(ctx, &work->v4);
	return verdict;
}

#endif /* PACKET_FAMILY_H */
