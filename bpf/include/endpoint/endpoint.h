/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Endpoints of this node: by address as receivers, by interface as senders. Rust twin:
 * bpf/maps/src/endpoint.rs
 */
#ifndef ENDPOINT_ENDPOINT_H
#define ENDPOINT_ENDPOINT_H

#include "../common/af.h"
#include "../common/map.h"
#include "../node/ipcache.h"

struct lxc_key {
	__be32 address[4]; /* IPv4 in the first word, rest zero */
	__u8 family;	   /* 1 = IPv4, 2 = IPv6 */
	__u8 key;	   /* zero */
	__u16 cluster_id;
};
_Static_assert(sizeof(struct lxc_key) == 20, "lxc_key layout");

struct lxc_value {
	__u32 ifindex; /* interface on this side */
	__u8 events;   /* EVENTS_* of the endpoint, 0: of the node; not in Cilium's */
	__u8 unused;
	__u16 endpoint;
	__u32 flags;
	__u32 route_table;
	__u8 mac[8]; /* of the interface in the pod; 6 bytes */
	__u8 node_mac[8];
	__u32 identity;
	__u32 parent_ifindex;
	__u64 pad;
};
_Static_assert(sizeof(struct lxc_value) == 48, "lxc_value layout");
_Static_assert(__builtin_offsetof(struct lxc_value, identity) == 32, "lxc_value.identity");

#define LXC_HOST (1 << 0)
#define LXC_AT_HOST_NS (1 << 1)
#define LXC_SKIP_MASQUERADE4 (1 << 2)
#define LXC_SKIP_MASQUERADE6 (1 << 3)

MAP(cilium_lxc, BPF_MAP_TYPE_HASH, struct lxc_key, struct lxc_value);

/* Configuration of the endpoint behind an interface: one program serves all endpoints. */
struct endpoint {
	__be32 ipv4; /* zero: none */
	__be32 ipv6[4];
	__u32 identity;
	__u16 id;
	__u8 flags;
	__u8 verdicts; /* directions of policy verdict events: 1 ingress, 2 egress */
	__u32 route_table;
	__u8 mac[6]; /* of the interface on this side */
	__u8 events; /* EVENTS_*, 0: those of the node */
	__u8 pad;
	__u64 netns_cookie; /* of its network namespace; zero: unknown */
};
_Static_assert(sizeof(struct endpoint) == 48, "endpoint layout");
_Static_assert(__builtin_offsetof(struct endpoint, identity) == 20, "endpoint.identity");
_Static_assert(__builtin_offsetof(struct endpoint, mac) == 32, "endpoint.mac");
_Static_assert(__builtin_offsetof(struct endpoint, netns_cookie) == 40, "endpoint.netns_cookie");

#define ENDPOINT_VERIFY_SOURCE (1 << 0) /* source addresses are verified */
/* The policy of this direction allows everything. */
#define ENDPOINT_OPEN_INGRESS (1 << 1)
#define ENDPOINT_OPEN_EGRESS (1 << 2)
/* cil_to_container is attached and enforces ingress policy. */
#define ENDPOINT_EGRESS_PROGRAM (1 << 3)
/* The kernel answers its ARP requests. */
#define ENDPOINT_ARP_PASSTHROUGH (1 << 4)
/* What its policy denies passes, with an event. */
#define ENDPOINT_AUDIT (1 << 5)

MAP(skep_endpoints, BPF_MAP_TYPE_HASH, __u32, struct endpoint);

/* Configuration of a device of the node. */
struct device {
	__be32 masquerade4; /* masquerade address; zero: none */
	__be32 masquerade6[4];
	__u8 mac[6];
	__u8 flags;
	__u8 pad;
};
_Static_assert(sizeof(struct device) == 28, "device layout");

#define DEVICE_L3 (1 << 0) /* L3 device: packets begin with their IP header */

MAP(skep_devices, BPF_MAP_TYPE_HASH, __u32, struct device);

/* A VLAN on a device whose VLAN interface has programs as well. */
struct vlan_key {
	__u32 ifindex; /* what carries it */
	__u16 id;
	__u16 pad; /* zero */
};
_Static_assert(sizeof(struct vlan_key) == 8, "vlan_key layout");

MAP(skep_vlans, BPF_MAP_TYPE_HASH, struct vlan_key, __u8);

#ifdef __bpf__
#define AF 4
#include "endpoint.inc.h"
#undef AF
#define AF 6
#include "endpoint.inc.h"
#undef AF
#endif

#endif /* ENDPOINT_ENDPOINT_H */
