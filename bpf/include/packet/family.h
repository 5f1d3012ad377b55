/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Continuation of packets translated by NAT46 and NAT64. */
#ifndef PACKET_FAMILY_H
#define PACKET_FAMILY_H

#include "host.h"

/* Forwards a packet translated to IPv4. Returns a verdict. */
GLOBAL int forward_as_ipv4(CTX *ctx, struct scratch4 *scratch)
{
	const struct lxc_value *local;
	struct packet4 *packet;
	struct trace_ctx *trace;
	int error;

	scratch = OWN_SCRATCH(scratch);
	if (!scratch || !options.packet.nat46x64)
		return -DROP_NAT64;
	trace = &scratch->trace;
	packet = &scratch->packet;
	trace->ipv6 = 0;
	if (parse4(ctx, packet))
		return FAIL(trace, DROP_NAT64);
	local = lxc_lookup4(packet->daddr);
	/* The kernel takes no packets from the node's own address. */
	if (local && (local->flags & (LXC_HOST | LXC_AT_HOST_NS)))
		return FAIL(trace, DROP_NAT64);
	if (local)
		return deliver4(ctx, scratch, local, FROM_SERVICE);
	mark_snat_done(ctx);
	if (options.packet.tunnel) {
		find_peer4(ctx, scratch, packet->daddr);
		if (is_tunnelled(&scratch->peer)) {
			error = take_hop_or_reply4(ctx, packet, trace);
			if (error)
				return error;
			return encapsulate(ctx, trace, &scratch->peer, IDENTITY_WORLD);
		}
	}
	return route4(ctx, scratch, 1);
}

/* Routes a packet translated to IPv6. Returns a verdict. */
GLOBAL int forward_as_ipv6(CTX *ctx, struct scratch6 *scratch)
{
	struct trace_ctx *trace;

	scratch = OWN_SCRATCH(scratch);
	if (!scratch || !options.packet.nat46x64)
		return -DROP_NAT46;
	trace = &scratch->trace;
	trace->ipv6 = 1;
	if (parse6(ctx, &scratch->packet))
		return FAIL(trace, DROP_NAT46);
	mark_snat_done(ctx);
	return route6(ctx, scratch, 1);
}

/* Continues with a packet that was translated to the other family. Returns a verdict. */
static __always_inline int continue_translated(CTX *ctx, union scratch *scratch, int verdict)
{
	if (!options.packet.nat46x64)
		return verdict;
	if (verdict == CONTINUE_AS_IPV6) {
		scratch->v6.trace.ipv6 = 1;
		scratch->v6.is_decapsulated = 0;
#ifdef PACKET_OVERLAY
		verdict = from_overlay6(ctx, &scratch->v6);
#else
		verdict = from_network6(ctx, &scratch->v6);
#endif
		/* The IPv6 service or gateway is gone. */
		return verdict == CONTINUE_AS_IPV4 ? FAIL(&scratch->v6.trace, DROP_NAT46) : verdict;
	}
	if (verdict == ROUTE_AS_IPV6)
		return forward_as_ipv6(ctx, &scratch->v6);
	if (verdict == CONTINUE_AS_IPV4)
		return forward_as_ipv4(ctx, &scratch->v4);
	return verdict;
}

#include "../flow/table.h"

#endif /* PACKET_FAMILY_H */
