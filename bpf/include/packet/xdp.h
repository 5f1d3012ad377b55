/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Services for clients outside, before the kernel makes anything of a packet. What needs more than
 * new addresses and another way goes on to the tc programs.
 */
#ifndef PACKET_XDP_H
#define PACKET_XDP_H

#include "dsr.h"
#include "nodeport.h"
#include "vxlan.h"

/* Verdict: the packet goes on, and is for no service, or was translated. */
#define XDP_DONE 100

/* Entries that have counted the packet, with `bpf-conntrack-accounting`. */
#define COUNTED_SERVICE (1 << 0) /* the service's */
#define COUNTED_REQUEST (1 << 1) /* of the flow to the backend */
#define COUNTED_ANSWER (1 << 2)	 /* of the flow that it answers */

static __always_inline void tell_tc(CTX *ctx, __u32 what)
{
	__u32 *metadata;

	/* Not all drivers have room: the tc program then finds out by itself. */
	if (bpf_xdp_adjust_meta(ctx, -(int)sizeof(*metadata)))
		return;
	metadata = PACKET_BOUND(ctx, data_meta);
	OPAQUE(metadata);
	if ((void *)(metadata + 1) > PACKET_BOUND(ctx, data))
		return;
	*metadata = what;
}

/* Whether the tc program serves this better: it answers to clients without a backend, and packets
 * to backends of this node alone come there in larger pieces.
 */
static __always_inline int is_for_tc(const struct lb_service *svc)
{
	return lb_is_l7(svc) || (svc->flags2 & LB2_NAT46X64) || lb_delegates_if_local(svc) ||
	       (svc->flags & LB_EXT_LOCAL) || !svc->count;
}

#define AF 4
#include "xdp.inc.h"
#undef AF
#define AF 6
#include "xdp.inc.h"
#undef AF

#endif /* PACKET_XDP_H */
