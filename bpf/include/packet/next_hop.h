/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Next hop of packets at XDP: interface and link header, by the node's routes. */
#ifndef PACKET_NEXT_HOP_H
#define PACKET_NEXT_HOP_H

#include "../endpoint/endpoint.h"
#include "../node/neighbour.h"
#include "scratch.h"

/* L3 length, as compared with a route's MTU. */
static __always_inline __u16 l3_length(CTX *ctx)
{
	__u32 length = packet_length(ctx) - L3;

	return length < 0xffff ? length : 0xffff;
}

#define AF 4
#include "next_hop.inc.h"
#undef AF
#define AF 6
#include "next_hop.inc.h"
#undef AF

/* Sends the packet to the next hop. Returns a verdict. */
static __always_inline int redirect_to(CTX *ctx, struct trace_ctx *trace,
				       const struct next_hop *next_hop)
{
	struct ethernet *ethernet = packet_bytes(ctx, 0, sizeof(*ethernet));

	if (!ethernet)
		return FAIL(trace, DROP_WRITE);
	copy_mac(ethernet->source, next_hop->link.source);
	copy_mac(ethernet->destination, next_hop->link.destination);
	if (next_hop->ifindex == packet_interface(ctx)) {
		flow_note_exit(FLOW_TX, 0);
		return XDP_TX;
	}
	flow_note_exit(FLOW_REDIRECT, next_hop->ifindex);
	return bpf_redirect(next_hop->ifindex, 0);
}

#endif /* PACKET_NEXT_HOP_H */
