/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* IPv4 addresses in IPv6 addresses (RFC 6052): behind a prefix of 96 bits. */
#ifndef NAT_EMBED_H
#define NAT_EMBED_H

#include "../common/af.h"
#include "../node/options.h"

/* options.packet.nat46x64: what is translated between the address families; 0: nothing */
#define NAT46X64_SERVICES 1 /* services with backends of the other family */
#define NAT46X64_GATEWAY 2  /* what only passes this node */

static __always_inline int is_embedded(const __be32 *address)
{
	return address[0] == options.packet.nat46x64_prefix[0] &&
	       address[1] == options.packet.nat46x64_prefix[1] &&
	       address[2] == options.packet.nat46x64_prefix[2];
}

static __always_inline void embed(__be32 *to, __be32 address)
{
	to[0] = options.packet.nat46x64_prefix[0];
	to[1] = options.packet.nat46x64_prefix[1];
	to[2] = options.packet.nat46x64_prefix[2];
	to[3] = address;
}

#endif /* NAT_EMBED_H */
