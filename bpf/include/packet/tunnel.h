/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Tunnel to other nodes; the VNI is the source identity. */
#ifndef PACKET_TUNNEL_H
#define PACKET_TUNNEL_H

#include "../event/debug.h"
#include "../nat/embed.h"
#include "../node/ipcache.h"
#include "../node/options.h"
#include "scratch.h"

/* options.packet.tunnel */
#define TUNNEL_VXLAN 1

#define TUNNEL_TTL 64
#define TUNNEL_ID_MAX 0xffffffU
/* Kernels before 5.19 do not know the fields that follow. */
#define TUNNEL_KEY_SIZE __builtin_offsetof(struct bpf_tunnel_key, local_ipv4)

/* Sets the tunnel peer of an ipcache entry. */
static __always_inline void set_peer(struct tunnel_peer *peer, const struct ipcache_value *value)
{
	peer->flags = 0;
	if (!value)
		return;
	copy6(peer->endpoint, value->tunnel_endpoint);
	peer->flags = value->flags;
}

/* The peer is reached by the tunnel. */
static __always_inline int is_tunnelled(const struct tunnel_peer *peer)
{
	return (peer->flags & (IPCACHE_HAS_TUNNEL | IPCACHE_SKIP_TUNNEL)) == IPCACHE_HAS_TUNNEL;
}

/* VNI of an identity. Node-local identities are mapped to those known to other nodes. */
static __always_inline __u32 tunnel_id(__u32 identity)
{
	if (identity == IDENTITY_HOST)
		return IDENTITY_REMOTE_NODE;
	if (identity == IDENTITY_WORLD_IPV4 || identity == IDENTITY_WORLD_IPV6)
		return IDENTITY_WORLD;
	if (identity <= TUNNEL_ID_MAX)
		return identity;
	return identity_is_node(identity) ? IDENTITY_REMOTE_NODE : IDENTITY_WORLD;
}

#define AF 4
#include "tunnel.inc.h"
#undef AF
#define AF 6
#include "tunnel.inc.h"
#undef AF

#ifndef PACKET_XDP
/* Encapsulates the packet to the peer. Returns a verdict. */
GLOBAL int encapsulate(CTX *ctx, struct trace_ctx *trace, const struct tunnel_peer *peer,
		       __u32 identity)
{
	struct bpf_tunnel_key key = {.tunnel_ttl = TUNNEL_TTL};
	struct flow *flow;
	__u64 flags;
	long failed;

	if (!trace || !peer)
		return -DROP_INVALID;
	DEBUG(ctx, trace, DEBUG_ENCAPSULATION,
	      bpf_ntohl(peer->endpoint[peer->flags & IPCACHE_TUNNEL_IPV6 ? 3 : 0]), identity);
	key.tunnel_id = tunnel_id(identity);
	if (peer->flags & IPCACHE_TUNNEL_IPV6) {
		copy6(key.remote_ipv6, peer->endpoint);
		flags = BPF_F_TUNINFO_IPV6;
	} else {
		key.remote_ipv4 = bpf_ntohl(peer->endpoint[0]);
		flags = BPF_F_ZERO_CSUM_TX;
	}
	failed = bpf_skb_set_tunnel_key(ctx, &key, TUNNEL_KEY_SIZE, flags);
	if (failed) {
		DEBUG(ctx, trace, DEBUG_ERROR, BPF_FUNC_skb_set_tunnel_key, failed);
		return FAIL(trace, DROP_WRITE);
	}
	COUNT_PACKET(ctx, REASON_FORWARDED, METRIC_EGRESS, METRIC_FILE_ENCAP);
	trace_packet(ctx, trace, TRACE_TO_OVERLAY, options.packet.tunnel_device, NULL);
	flow = flow_note_exit(FLOW_TUNNEL, options.packet.tunnel_device);
	if (flow) {
		flow->tunnel_id = key.tunnel_id;
		flow->next_family = peer->flags & IPCACHE_TUNNEL_IPV6;
		copy6(flow->next, peer->endpoint);
	}
	return bpf_redirect(options.packet.tunnel_device, 0);
}

/* Reads the VNI of the packet. Returns 0, or less. */
static __always_inline long packet_tunnel_id(CTX *ctx, __u32 *id)
{
	struct bpf_tunnel_key key = {};

	/* The underlay is IPv4 or IPv6. */
	if (bpf_skb_get_tunnel_key(ctx, &key, TUNNEL_KEY_SIZE, 0) &&
	    bpf_skb_get_tunnel_key(ctx, &key, TUNNEL_KEY_SIZE, BPF_F_TUNINFO_IPV6))
		return -1;
	*id = key.tunnel_id;
	return 0;
}
#endif

#endif /* PACKET_TUNNEL_H */
