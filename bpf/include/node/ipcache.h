/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* ipcache: identity and tunnel endpoint of addresses. Rust twin: bpf/maps/src/node.rs */
#ifndef NODE_IPCACHE_H
#define NODE_IPCACHE_H

#include "../common/af.h"
#include "../common/map.h"

struct ipcache_key {
	__u32 prefixlen; /* counts the 32 bits before the address */
	__u16 cluster_id;
	__u8 pad;
	__u8 family;
	__be32 address[4]; /* IPv4 in the first word, rest zero */
};
_Static_assert(sizeof(struct ipcache_key) == 24, "ipcache_key layout");
_Static_assert(__builtin_offsetof(struct ipcache_key, family) == 7, "ipcache_key.family");

struct ipcache_value {
	__u32 identity;
	__be32 tunnel_endpoint[4];
	__u8 pad[2];
	__u8 encrypt_key;
	__u8 flags;
};
_Static_assert(sizeof(struct ipcache_value) == 24, "ipcache_value layout");
_Static_assert(__builtin_offsetof(struct ipcache_value, flags) == 23, "ipcache_value.flags");

#define IPCACHE_IPV4 1
#define IPCACHE_IPV6 2
#define IPCACHE_STATIC_BITS 32
#define IPCACHE_SKIP_TUNNEL (1 << 0)
#define IPCACHE_HAS_TUNNEL (1 << 1)
#define IPCACHE_TUNNEL_IPV6 (1 << 2)
#define IPCACHE_REMOTE_CLUSTER (1 << 3)

MAP(cilium_ipcache_v2, BPF_MAP_TYPE_LPM_TRIE, struct ipcache_key, struct ipcache_value);

#define IDENTITY_HOST 1
#define IDENTITY_WORLD 2
#define IDENTITY_REMOTE_NODE 6
#define IDENTITY_KUBE_APISERVER 7
#define IDENTITY_WORLD_IPV4 9 /* only with both address families */
#define IDENTITY_WORLD_IPV6 10
#define IDENTITY_SCOPE_MASK 0xff000000U
#define IDENTITY_SCOPE_NODE 0x02000000U

#ifdef __bpf__
#define AF 4
#include "ipcache.inc.h"
#undef AF
#define AF 6
#include "ipcache.inc.h"
#undef AF
#endif

static __always_inline int ipcache_is_host(const struct ipcache_value *value)
{
	return value && value->identity == IDENTITY_HOST;
}

/* A node of any cluster, but this one. */
static __always_inline int identity_is_node(__u32 identity)
{
	return identity == IDENTITY_REMOTE_NODE || identity == IDENTITY_KUBE_APISERVER ||
	       (identity & IDENTITY_SCOPE_MASK) == IDENTITY_SCOPE_NODE;
}

/* Another node of this cluster. */
static __always_inline int ipcache_is_peer_node(const struct ipcache_value *value)
{
	if (!value || (value->flags & IPCACHE_REMOTE_CLUSTER))
		return 0;
	return identity_is_node(value->identity);
}

/* Tunnel endpoint of an address. */
struct tunnel_peer {
	__be32 endpoint[4];
	__u8 flags; /* IPCACHE_*, 0: none */
	__u8 pad[3];
};

/* Identity of unknown addresses. */
static __always_inline __u32 world_identity(int dual_stack, int ipv6)
{
	if (!dual_stack)
		return IDENTITY_WORLD;
	return ipv6 ? IDENTITY_WORLD_IPV6 : IDENTITY_WORLD_IPV4;
}

#endif /* NODE_IPCACHE_H */
