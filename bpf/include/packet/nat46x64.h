/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* NAT46 and NAT64. All state is IPv6, with embedded IPv4 addresses: an IPv4 packet to a service
 * with IPv6 backends is translated to IPv6 first; an IPv6 packet to an embedded backend is
 * translated to IPv4 last, after DNAT and SNAT.
 */
#ifndef PACKET_NAT46X64_H
#define PACKET_NAT46X64_H

#include "../nat/headers46.h"
#include "nodeport.h"
#include "reply.h"
#include "tunnel.h"

/* The service's backends can be reached. */
static __always_inline int has_usable_backends(const struct lb_service *svc)
{
	return !(svc->flags2 & LB2_NAT46X64) || (options.packet.nat46x64 & NAT46X64_SERVICES) != 0;
}

/* Translates the packet to IPv6, or sends an ICMP error if it exceeds the MTU. Returns `next`, or
 * another verdict.
 */
GLOBAL int nat46(CTX *ctx, struct scratch4 *scratch, __u32 next)
{
	struct trace_ctx *trace;
	struct ip4 *ip;
	int error;
	__u32 mtu;

	scratch = OWN_SCRATCH(scratch);
	if (!scratch || !options.packet.nat46x64)
		return -DROP_NAT46;
	trace = &scratch->trace;
	mtu = options.packet.nat46x64_mtu - FAMILY_GROWTH;
	ip = packet_bytes(ctx, L3, sizeof(*ip));
	if (!ip)
		return FAIL(trace, DROP_NAT46);
	/* GSO segments shrink as the packet grows. */
	if (!ctx->gso_size && bpf_ntohs(ip->length) > mtu) {
		if (!(ip->fragment & bpf_htons(IP4_DONT_FRAGMENT)))
			return FAIL(trace, DROP_NAT46);
		return send_frag_needed4(ctx, &scratch->packet, trace, mtu);
	}
	error = headers_4to6(ctx, scratch);
	if (error)
		return FAIL(trace, error);
	CAPTURE(ctx, trace, CAPTURE_AFTER_NAT46, packet_interface(ctx));
	return next;
}

/* Translates the packet to IPv4. Returns a verdict. */
static __always_inline int nat64(CTX *ctx, struct scratch6 *scratch)
{
	int error = headers_6to4(ctx, scratch);

	if (error)
		return FAIL(&scratch->trace, error);
	CAPTURE(ctx, &scratch->trace, CAPTURE_AFTER_NAT64, packet_interface(ctx));
	return CONTINUE_AS_IPV4;
}

/* An IPv4 packet to a service with IPv6 backends. Returns a verdict. */
static __always_inline int nat46_request(CTX *ctx, struct scratch4 *scratch)
{
	struct packet4 *packet = &scratch->packet;
	struct trace_ctx *trace = &scratch->trace;

	if (!in_source_range4(packet, &scratch->service))
		return FAIL(trace, DROP_SOURCE_RANGE);
	if (!(scratch->service.flags & LB_ROUTABLE))
		return FAIL(trace, DROP_IS_CLUSTER_IP);
	if (packet->ct_error)
		return FAIL(trace, packet->ct_error);
	if (!scratch->service.count) {
		if (!options.packet.reply_no_backend)
			return FAIL(trace, DROP_NO_SERVICE);
		return reply_error4(ctx, packet, NO_BACKEND4, ctx->len);
	}
	return nat46(ctx, scratch, CONTINUE_AS_IPV6);
}

/* An IPv4 reply to a packet with an IPv6 source. */
static __noinline int is_nat64_reply(CTX *ctx, struct scratch4 *scratch)
{
	const struct packet4 *packet = &scratch->packet;
	struct nat_key6 key ALIGNED = {.flags = NAT_REVERSE};

	if (packet->related) {
		if (!parse_inner4(ctx, packet, &scratch->inner))
			return 0;
		embed(key.daddr, scratch->inner.saddr);
		embed(key.saddr, scratch->inner.daddr);
		key.dport = scratch->inner.sport;
		key.sport = scratch->inner.dport;
		key.proto = scratch->inner.proto;
	} else {
		embed(key.daddr, packet->daddr);
		embed(key.saddr, packet->saddr);
		key.dport = packet->dport;
		key.sport = packet->sport;
		key.proto = packet->proto == IPPROTO_ICMP ? IPPROTO_ICMPV6 : packet->proto;
	}
	return bpf_map_lookup_elem(&cilium_snat_v6_external, &key) != NULL;
}

/* Sets the SNAT source of packets to an IPv4 backend. */
static __always_inline void nat64_source(struct scratch6 *scratch)
{
	embed(scratch->target.address, options.packet.nodeport_source4);
	if (options.packet.tunnel) {
		set_peer(&scratch->peer, ipcache_lookup4(scratch->packet.daddr[3]));
		if (is_tunnelled(&scratch->peer))
			embed(scratch->target.address, packet_options()->router4);
	}
}

/* An IPv6 packet to an embedded IPv4 backend. Returns a verdict. */
static __always_inline int nat64_request(CTX *ctx, struct scratch6 *scratch)
{
	int error;

	nat64_source(scratch);
	scratch->target.needs_ct = 0;
	error = nat_egress6(ctx, scratch);
	if (error)
		return FAIL(&scratch->trace, error);
	return nat64(ctx, scratch);
}

int translate_error6(CTX *ctx, struct scratch6 *scratch, __u32 outside);

/* Translates an ICMP error about a packet to a backend to one about the service. Returns a verdict;
 * NOT_HANDLED if it stays IPv6.
 */
GLOBAL int nat64_error(CTX *ctx, struct scratch6 *scratch)
{
	int error;

	scratch = OWN_SCRATCH(scratch);
	if (!scratch || !options.packet.nat46x64)
		return NOT_HANDLED;
	if (!parse_inner6(ctx, &scratch->packet, &scratch->inner))
		return NOT_HANDLED;
	error = translate_error6(ctx, scratch, 0);
	if (error)
		return FAIL(&scratch->trace, error);
	return is_embedded(scratch->packet.daddr) ? nat64(ctx, scratch) : 0;
}

/* An IPv6 packet of a local backend to an embedded client. Returns a verdict; NOT_HANDLED if it is
 * no reply.
 */
GLOBAL int nat46_reply(CTX *ctx, struct scratch6 *scratch)
{
	const struct ct_entry *entry;
	int error;

	scratch = OWN_SCRATCH(scratch);
	if (!scratch || !options.packet.nat46x64)
		return NOT_HANDLED;
	if (scratch->packet.related)
		return nat64_error(ctx, scratch);
	entry = nodeport_flow6(ctx, scratch);
	if (!entry)
		return NOT_HANDLED;
	error = reverse_translate6(ctx, scratch, entry);
	return error ? FAIL(&scratch->trace, error) : nat64(ctx, scratch);
}

/* The address is outside of the cluster, and no multicast: the gateway translates packets to it. */
static __always_inline int is_gateway_destination(__be32 address)
{
	const struct ipcache_value *to;
	__u32 first = bpf_ntohl(address) >> 24;

	if (!first || first == 127 || first >= 224)
		return 0;
	to = ipcache_lookup4(address);
	return !to || to->identity == world_identity(options.packet.dual_stack, 0) ||
	       to->identity == IDENTITY_WORLD;
}

#endif /* PACKET_NAT46X64_H */
