/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Ways of a packet: from a pod, to a pod of this node, on to the network. */
#ifndef PACKET_FORWARD_H
#define PACKET_FORWARD_H

#include <linux/if_packet.h>

#include "../endpoint/endpoint.h"
#include "../endpoint/enforce.h"
#include "../lb/skip.h"
#include "../nat/translate.h"
#include "../node/ipcache.h"
#include "../node/throttle.h"
#include "dsr.h"
#include "echo.h"
#include "nat46x64.h"
#include "reply.h"
#include "service.h"
#include "tunnel.h"

#ifndef BPF_FIB_LOOKUP_SKIP_NEIGH
#define BPF_FIB_LOOKUP_SKIP_NEIGH (1U << 2)
#endif

/* Origin of a packet to an endpoint. */
enum delivery {
	FROM_POD,
	FROM_NETWORK,
	FROM_SERVICE, /* from the network, translated */
	FROM_HOST,
	FROM_INGRESS_PROXY, /* after policy enforcement */
	FROM_EGRESS_PROXY,
};

/* The packet comes from the kernel's stack. */
static __always_inline int is_from_stack(__u32 how)
{
	return how == FROM_HOST || how == FROM_INGRESS_PROXY || how == FROM_EGRESS_PROXY;
}

/* The pod has cil_to_container attached, which enforces its policy. */
static __always_inline int has_egress_program(const struct lxc_value *receiver)
{
	__u32 ifindex = receiver->ifindex;
	const struct endpoint *facts = bpf_map_lookup_elem(&skep_endpoints, &ifindex);

	return facts && (facts->flags & ENDPOINT_EGRESS_PROGRAM);
}

/* The endpoint of the node; NULL: its policy is not known yet. */
static __always_inline const struct endpoint *host_endpoint(void)
{
	__u32 ifindex = options.packet.cilium_host;

	return bpf_map_lookup_elem(&skep_endpoints, &ifindex);
}

/* ICMPv6 messages that pass host policies: errors, multicast groups, neighbour discovery
 * (RFC 4890).
 */
static __always_inline int is_exempt_icmp6(__u8 type)
{
	return (type >= 1 && type <= 4) || (type >= 130 && type <= 136) ||
	       (type >= 141 && type <= 143) || type == 148 || type == 149 ||
	       (type >= 151 && type <= 153);
}

#define SKIP AF_FN(cilium_skip_lb)

#define TO_PROXY 1001	 /* a reply to a proxy of the node, and no drop reason */
#define ADMIT_ERROR 1000 /* an ICMP error about a flow of the receiver, and no drop reason */

static __always_inline __u64 fib_flags(void)
{
	return options.packet.has_skip_neigh ? BPF_FIB_LOOKUP_SKIP_NEIGH : 0;
}

#define AF 4
#include "forward.inc.h"
#include "proxy.inc.h"
#include "firewall.inc.h"
#include "receive.inc.h"
#include "send.inc.h"
#undef AF
#define AF 6
#include "forward.inc.h"
#include "proxy.inc.h"
#include "firewall.inc.h"
#include "receive.inc.h"
#include "send.inc.h"
#undef AF

#endif /* PACKET_FORWARD_H */
