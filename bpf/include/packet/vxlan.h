/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* VXLAN (RFC 7348) over IPv4 at XDP, without the kernel's tunnel device. */
#ifndef PACKET_VXLAN_H
#define PACKET_VXLAN_H

#include "tunnel.h"
#include "next_hop.h"

#define VXLAN_HAS_ID 0x08000000U

struct vxlan {
	__be32 flags;
	__be32 id; /* 24 bits, and 8 that are zero */
};

/* Outer headers, and growth of the packet: the inner frame has its own header. */
#define VXLAN_ROOM (L3 + sizeof(struct ip4) + sizeof(struct udp) + sizeof(struct vxlan))

/* XDP can encapsulate to this peer. The UDP checksum required by IPv6 would cover the inner packet.
 */
static __always_inline int writes_vxlan(const struct tunnel_peer *peer)
{
	return options.packet.tunnel == TUNNEL_VXLAN && options.packet.nodeport_source4 &&
	       !(peer->flags & IPCACHE_TUNNEL_IPV6);
}

/* Source port by flow hash, so that receivers spread flows over their queues. */
static __always_inline __be16 vxlan_source_port(__u32 hash)
{
	__u32 ports = options.packet.tunnel_port_max - options.packet.tunnel_port_min + 1;

	return bpf_htons(options.packet.tunnel_port_min + (__u16)((__u64)hash * ports >> 32));
}

/* Encapsulates the frame to the peer. `hash` of the flow, `ecn` of the inner packet (RFC 6040).
 * Returns a drop reason, or 0.
 */
static __noinline int vxlan_encapsulate(CTX *ctx, __be32 peer, __u32 identity, __u32 hash, __u8 ecn)
{
	__u16 inside = packet_length(ctx);
	struct ethernet *ethernet;
	struct vxlan *vxlan;
	struct udp *udp;
	struct ip4 *ip;

	if (bpf_xdp_adjust_head(ctx, -(int)VXLAN_ROOM))
		return DROP_WRITE;
	ethernet = packet_bytes(ctx, 0, VXLAN_ROOM);
	if (!ethernet)
		return DROP_WRITE;
	ip = (void *)ethernet + L3;
	udp = (void *)(ip + 1);
	vxlan = (void *)(udp + 1);
	ethernet->type = bpf_htons(ETH_P_IP);
	ip->version_ihl = 0x45;
	ip->tos = ecn;
	ip->length = bpf_htons(sizeof(*ip) + sizeof(*udp) + sizeof(*vxlan) + inside);
	/* Routers may fragment it. */
	ip->id = bpf_get_prandom_u32();
	ip->fragment = 0;
	ip->ttl = TUNNEL_TTL;
	ip->proto = IPPROTO_UDP;
	ip->checksum = 0;
	ip->source = options.packet.nodeport_source4;
	ip->destination = peer;
	ip->checksum = fold_checksum(bpf_csum_diff(NULL, 0, (__be32 *)ip, sizeof(*ip), 0));
	udp->source = vxlan_source_port(hash);
	udp->destination = bpf_htons(options.packet.tunnel_port);
	udp->length = bpf_htons(sizeof(*udp) + sizeof(*vxlan) + inside);
	udp->checksum = 0;
	vxlan->flags = bpf_htonl(VXLAN_HAS_ID);
	vxlan->id = bpf_htonl(tunnel_id(identity) << 8);
	return 0;
}

#endif /* PACKET_VXLAN_H */
