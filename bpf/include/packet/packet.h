/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Parsed packet: addresses, ports, conntrack state. */
#ifndef PACKET_PACKET_H
#define PACKET_PACKET_H

#include "../common/drop.h"
#include "../node/options.h"
#include "context.h"
#include "fragment.h"

#define L3 sizeof(struct ethernet)

enum fragment {
	FRAGMENT_NONE = 0,
	FRAGMENT_FIRST = 1,
	FRAGMENT_LATER = 2,
};

#define ICMP_PROTO AF_PASTE(ICMP_PROTO, AF)
#define ICMP_PROTO4 IPPROTO_ICMP
#define ICMP_PROTO6 IPPROTO_ICMPV6
#define ICMP_ECHO4 ICMP4_ECHO
#define ICMP_ECHO6 ICMP6_ECHO
#define ICMP_ECHO_REPLY4 ICMP4_ECHO_REPLY
#define ICMP_ECHO_REPLY6 ICMP6_ECHO_REPLY

/* Of bpf_fib_lookup(): AF_INET, AF_INET6 */
#define FIB_FAMILY4 2
#define FIB_FAMILY6 10

/* IPv6 headers before the transport header, at most. */
#define EXTENSION_HEADERS 6

static __always_inline int has_ports(__u8 proto)
{
	return proto == IPPROTO_TCP || proto == IPPROTO_UDP ||
	       (options.packet.sctp && proto == IPPROTO_SCTP);
}

#define AF 4
#include "packet.inc.h"
#undef AF
#define AF 6
#include "packet.inc.h"
#undef AF

#endif /* PACKET_PACKET_H */
