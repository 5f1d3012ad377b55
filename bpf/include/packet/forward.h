/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Ways of a packet: from a pod, to a pod of this node, on to the network. */
#ifndef PACKET_FORWARD_H
#define PACKET_FORWARD_H

#include <linux/if_packet.h>

#include "../endpoint/endpoint.h"
#include "../endpoint/enforce.h"
#include "../nat/translate.h"
#include "../node/ipcache.h"
#include "dsr.h"
#include "nat46x64.h"
#include "reply.h"
#include "service.h"
#include "tunnel.h"

#define FIB_FAMILY4 2
#define FIB_FAMILY6 10
#ifndef BPF_FIB_LOOKUP_SKIP_NEIGH
#define BPF_FIB_LOOKUP_SKIP_NEIGH (1U << 2)
#endif

/* Type and code of the error for services without backends. */
#define NO_BACKEND4 (ICMP4_UNREACHABLE << 8 | ICMP4_PORT_UNREACHABLE)
#define NO_BACKEND6 (ICMP6_UNREACHABLE << 8 | ICMP6_PORT_UNREACHABLE)

/* "Fragmentation needed", "packet too big": the same. */
#define TOO_LARGE4 (ICMP4_UNREACHABLE << 8 | ICMP4_FRAGMENTATION_NEEDED)
#define TOO_LARGE6 (ICMP6_TOO_BIG << 8)

/* How a packet comes to an endpoint. */
enum delivery {
	FROM_POD,
	FROM_NETWORK,
	FROM_SERVICE, /* from the network, translated */
	FROM_HOST,
};

static __always_inline __u64 fib_flags(void)
{
	return options.packet.has_skip_neigh ? BPF_FIB_LOOKUP_SKIP_NEIGH : 0;
}

#define AF 4
#include "forward.inc.h"
#undef AF
#define AF 6
#include "forward.inc.h"
#undef AF

#endif /* PACKET_FORWARD_H */
