/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Where packets go from XDP: interface and header of its link, as the routes of the node say. */
#ifndef PACKET_WAY_H
#define PACKET_WAY_H

#include "../endpoint/endpoint.h"
#include "../node/neighbour.h"
#include "work.h"

/* Bytes from the network header on, as a route's MTU counts them. */
static __always_inline __u16 l3_length(CTX *ctx)
{
	__u32 length = packet_length(ctx) - L3;

	return length < 0xffff ? length : 0xffff;
}

#define AF 4
#include "way.inc.h"
#undef AF
#define AF 6
#include "way.inc.h"
#undef AF

/* Sends the packet the way that was found. Returns a verdict, or less: a drop reason. */
static __always_inline int go(CTX *ctx, struct path *path, const struct way *way)
{
	struct ethernet *ethernet = packet_bytes(ctx, 0, sizeof(*ethernet));

	if (!ethernet)
		return FAIL(path, DROP_WRITE);
	copy_mac(ethernet->source, way->link.source);
	copy_mac(ethernet->destination, way->link.destination);
	if (way->ifindex == packet_interface(ctx))
		return XDP_TX;
	return bpf_redirect(way->ifindex, 0);
}

#endif /* PACKET_WAY_H */
