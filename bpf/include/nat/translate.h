/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* SNAT of packets that leave the node, and reverse translation of replies. */
#ifndef NAT_TRANSLATE_H
#define NAT_TRANSLATE_H

#include <linux/errno.h>

#include "../conntrack/track.h"
#include "../packet/rewrite.h"
#include "embed.h"
#include "nat.h"

#define NAT AF_JOIN(cilium_snat_v, _external)
#define NAT_RETRIES AF_JOIN(cilium_snat_v, _alloc_retries)

#define NAT_NONE 1000 /* no translation, and no drop reason */

static __always_inline int nat_port_usable(__be16 port)
{
	__u16 host_order = bpf_ntohs(port);

	return host_order >= options.packet.nat_min && host_order <= options.packet.nat_max;
}

static __always_inline __be16 nat_random_port(void)
{
	__u32 ports = options.packet.nat_max - options.packet.nat_min + 1;

	return bpf_htons((__u16)(options.packet.nat_min + bpf_get_prandom_u32() % ports));
}

static __always_inline __be16 nat_next_port(__be16 port)
{
	__u16 host_order = bpf_ntohs(port);

	return bpf_htons(host_order >= options.packet.nat_max ? options.packet.nat_min
							      : host_order + 1);
}

/* See ports46.h. */
static int nat_port_taken4(CTX *ctx, const struct nat_key4 *reverse_key);
static int nat_port_taken6(CTX *ctx, const struct nat_key6 *reverse_key);

#define AF 4
#include "translate.inc.h"
#undef AF
#define AF 6
#include "translate.inc.h"
#undef AF

#include "ports46.h"

#endif /* NAT_TRANSLATE_H */
