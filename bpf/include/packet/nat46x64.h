/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* NAT46 and NAT64. All state is that of IPv6, in which addresses of IPv4 are embedded: a packet of
 * IPv4 for a service with backends of IPv6 becomes one of IPv6 and goes on as such; a packet of
 * IPv6 whose backend is embedded becomes one of IPv4 when its destination and source are settled.
 */
#ifndef PACKET_NAT46X64_H
#define PACKET_NAT46X64_H

#include "../nat/headers46.h"
#include "nodeport.h"
#include "reply.h"
#include "tunnel.h"

/* Verdicts: the packet is of the other family now, and goes on ... */
#define GOES_ON_AS_6 0x100 /* as if it had just come */
#define ROUTES_AS_6 0x101
#define GOES_ON_AS_4 0x102 /* to its receiver */

/* The service's backends can be reached. */
static __always_inline int has_usable_backends(const struct lb_service *svc)
{
	return !(svc->flags2 & LB2_NAT46X64) || (options.packet.nat46x64 & NAT46X64_SERVICES) != 0;
}

/* Makes the packet one of IPv6; sends the sender an ICMP error if it becomes too large. Returns
 * `next`, another verdict, or less: a drop reason.
 */
GLOBAL int nat46(CTX *ctx, struct work4 *work, __u32 next)
{
	struct path *path;
	struct ip4 *ip;
	int error;
	__u32 mtu;

	work = OWN_WORK(work);
	if (!work || !options.packet.nat46x64)
		return -DROP_NAT46;
	path = &work->path;
	mtu = options.packet.nat46x64_mtu - FAMILY_GROWTH;
	ip = packet_bytes(ctx, L3, sizeof(*ip));
	if (!ip)
		return FAIL(path, DROP_NAT46);
	/* Segments become smaller as the packet grows. */
	if (!ctx->gso_size && bpf_ntohs(ip->length) > mtu) {
		if (!(ip->fragment & bpf_htons(IP4_DONT_FRAGMENT)))
			return FAIL(path, DROP_NAT46);
		return tell_mtu4(ctx, &work->packet, path, mtu);
	}
	error = headers_4to6(ctx, work);
	if (error)
		return FAIL(path, error);
	CAPTURE(ctx, path, CAPTURE_AFTER_NAT46, packet_interface(ctx));
	return next;
}

/* Makes the packet one of IPv4. Returns a verdict, or less: a drop reason. */
static __always_inline int nat64(CTX *ctx, struct work6 *work)
{
	int error = headers_6to4(ctx, work);

	if (error)
		return FAIL(&work->path, error);
	CAPTURE(ctx, &work->path, CAPTURE_AFTER_NAT64, packet_interface(ctx));
	return GOES_ON_AS_4;
}

/* A packet of IPv4 for a service with backends of IPv6. Returns a verdict, or less: a drop reason.
 */
static __always_inline int nat46_request(CTX *ctx, struct work4 *work)
{
	struct packet4 *packet = &work->packet;
	struct path *path = &work->path;

	if (!in_source_range4(packet, &work->service))
		return FAIL(path, DROP_SOURCE_RANGE);
	if (!(work->service.flags & LB_ROUTABLE))
		return FAIL(path, DROP_IS_CLUSTER_IP);
	if (packet->ct_error)
		return FAIL(path, packet->ct_error);
	if (!work->service.count) {
		if (!options.packet.reply_no_backend)
			return FAIL(path, DROP_NO_SERVICE);
		return reply_error4(ctx, packet, NO_BACKEND4, ctx->len);
	}
	return nat46(ctx, work, GOES_ON_AS_6);
}

/* A packet of IPv4 that answers one whose source was of IPv6. */
static __noinline int answers_nat64(CTX *ctx, struct work4 *work)
{
	const struct packet4 *packet = &work->packet;
	struct nat_key6 key ALIGNED = {.flags = NAT_REVERSE};

	if (packet->related) {
		if (!parse_inner4(ctx, packet, &work->inner))
			return 0;
		embed(key.daddr, work->inner.saddr);
		embed(key.saddr, work->inner.daddr);
		key.dport = work->inner.sport;
		key.sport = work->inner.dport;
		key.proto = work->inner.proto;
	} else {
		embed(key.daddr, packet->daddr);
		embed(key.saddr, packet->saddr);
		key.dport = packet->dport;
		key.sport = packet->sport;
		key.proto = packet->proto == IPPROTO_ICMP ? IPPROTO_ICMPV6 : packet->proto;
	}
	return bpf_map_lookup_elem(&cilium_snat_v6_external, &key) != NULL;
}

/* Source of packets to a backend of IPv4: answers must come back here. */
static __always_inline void nat64_source(struct work6 *work)
{
	embed(work->target.address, options.packet.nodeport_source4);
	if (options.packet.tunnel) {
		peer_of(&work->peer, ipcache_lookup4(work->packet.daddr[3]));
		if (is_tunnelled(&work->peer))
			embed(work->target.address, packet_options()->router4);
	}
}

/* A packet of IPv6 for a backend of IPv4, which is its destination. Returns a verdict, or less: a
 * drop reason.
 */
static __always_inline int nat64_request(CTX *ctx, struct work6 *work)
{
	int error;

	nat64_source(work);
	work->target.needs_ct = 0;
	error = nat_egress6(ctx, work);
	if (error)
		return FAIL(&work->path, error);
	return nat64(ctx, work);
}

int translate_error6(CTX *ctx, struct work6 *work, __u32 outside);

/* An ICMP error about a packet to a backend is one about the packet to the service. Returns as
 * `nat64`, or 0 if it goes on as a packet of IPv6.
 */
GLOBAL int nat64_error(CTX *ctx, struct work6 *work)
{
	int error;

	work = OWN_WORK(work);
	if (!work || !options.packet.nat46x64)
		return 0;
	if (!parse_inner6(ctx, &work->packet, &work->inner))
		return 0;
	error = translate_error6(ctx, work, 0);
	if (error)
		return FAIL(&work->path, error);
	return is_embedded(work->packet.daddr) ? nat64(ctx, work) : 0;
}

/* A packet of IPv6 for an embedded client, from a backend of this node. Returns as `nat64`, or 0 if
 * it answers nothing.
 */
GLOBAL int nat46_answer(CTX *ctx, struct work6 *work)
{
	const struct ct_entry *entry;
	int error;

	work = OWN_WORK(work);
	if (!work || !options.packet.nat46x64)
		return 0;
	if (work->packet.related)
		return nat64_error(ctx, work);
	entry = nodeport_flow6(ctx, work);
	if (!entry)
		return 0;
	error = translate_back6(ctx, work, entry);
	return error ? FAIL(&work->path, error) : nat64(ctx, work);
}

/* Whether a gateway translates packets to this address: neither the cluster has it nor a group. */
static __always_inline int is_beyond_gateway(__be32 address)
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
