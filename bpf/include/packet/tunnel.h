/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The way to other nodes through the tunnel: the identity of the sender is the tunnel's id (VNI).
 */
#ifndef PACKET_TUNNEL_H
#define PACKET_TUNNEL_H

#include "../event/debug.h"
#include "../nat/embed.h"
#include "../node/ipcache.h"
#include "../node/options.h"
#include "work.h"

/* options.packet.tunnel */
#define TUNNEL_VXLAN 1

#define TUNNEL_TTL 64
#define TUNNEL_ID_MAX 0xffffffU
/* Kernels before 5.19 do not know the fields that follow. */
#define TUNNEL_KEY_SIZE __builtin_offsetof(struct bpf_tunnel_key, local_ipv4)

/* Remembers the node that an entry names. */
static __always_inline void peer_of(struct tunnel_peer *peer, const struct ipcache_value *value)
{
	peer->flags = 0;
	if (!value)
		return;
	copy6(peer->endpoint, value->tunnel_endpoint);
	peer->flags = value->flags;
}

/* Packets go there by the tunnel. */
static __always_inline int is_tunnelled(const struct tunnel_peer *peer)
{
	return (peer->flags & (IPCACHE_HAS_TUNNEL | IPCACHE_SKIP_TUNNEL)) == IPCACHE_HAS_TUNNEL;
}

/* The id of the tunnel for packets of this identity. Other nodes do not know what this one calls
 * itself, nor the identities that it made up for itself.
 */
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
/* Sends the packet to the peer. Returns a verdict, or less: a drop reason. */
GLOBAL int encapsulate(CTX *ctx, struct path *path, const struct tunnel_peer *peer, __u32 identity)
{
	struct bpf_tunnel_key key = {.tunnel_ttl = TUNNEL_TTL};
	__u64 flags;
	long failed;

	if (!path || !peer)
		return -DROP_INVALID;
	DEBUG(ctx, path, DEBUG_ENCAPSULATION,
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
		DEBUG(ctx, path, DEBUG_ERROR, BPF_FUNC_skb_set_tunnel_key, failed);
		return FAIL(path, DROP_WRITE);
	}
	COUNT_PACKET(ctx, REASON_FORWARDED, METRIC_EGRESS, METRIC_FILE_ENCAP);
	trace_packet(ctx, path, TRACE_TO_OVERLAY, options.packet.tunnel_device, NULL);
	return bpf_redirect(options.packet.tunnel_device, 0);
}

/* The id of the tunnel that the packet came by, or is about to go by. Returns 0, or less. */
static __always_inline long packet_tunnel_id(CTX *ctx, __u32 *id)
{
	struct bpf_tunnel_key key = {};

	/* Either family may be under the tunnel. */
	if (bpf_skb_get_tunnel_key(ctx, &key, TUNNEL_KEY_SIZE, 0) &&
	    bpf_skb_get_tunnel_key(ctx, &key, TUNNEL_KEY_SIZE, BPF_F_TUNINFO_IPV6))
		return -1;
	*id = key.tunnel_id;
	return 0;
}
#endif

#endif /* PACKET_TUNNEL_H */
