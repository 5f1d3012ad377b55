/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Direct server return: the backend replies to the client directly, with the service's address. The
 * client's node encodes that address in an IP option, or encapsulates the original packet (IPIP).
 */
#ifndef PACKET_DSR_H
#define PACKET_DSR_H

#include "mode.h"
#include "nodeport.h"

/* IPv4 option and IPv6 destination option; unknown to others, who skip it. */
#define DSR_OPTION4 0x9a
#define DSR_OPTION6 0x1b

/* Port and address are little-endian on the wire, if the CPU is: as Cilium has it. */
struct dsr_option4 {
	__u8 type;
	__u8 length;
	__u16 port;
	__u32 address;
};
_Static_assert(sizeof(struct dsr_option4) == 8, "dsr_option4 layout");

/* The whole header. */
struct dsr_option6 {
	__u8 proto;
	__u8 header_length; /* in units of 8 bytes, less one */
	__u8 type;
	__u8 length; /* of what follows */
	__be32 address[4];
	__be16 port;
	__u16 pad;
};
_Static_assert(sizeof(struct dsr_option6) == 24, "dsr_option6 layout");

#define TUNNEL_PROTO4 IPPROTO_IPIP
#define TUNNEL_PROTO6 IPPROTO_IPV6

/* Hop limit of outer headers. XDP decrements it when it sends the packet. */
#define TUNNEL_HOPS 64
#ifdef PACKET_XDP
#define TUNNEL_HOPS_FIRST (TUNNEL_HOPS + 1)
#else
#define TUNNEL_HOPS_FIRST TUNNEL_HOPS
#endif

/* The upper `bits` of a product, as the kernel's hash_32(). */
static __always_inline __u32 dsr_hash(__u32 value, __u32 bits)
{
	value *= 0x61c88647;
	return bits ? value >> ((32 - bits) & 31) : 0;
}

#define AF 4
#include "dsr.inc.h"
#undef AF
#define AF 6
#include "dsr.inc.h"
#undef AF

#endif /* PACKET_DSR_H */
