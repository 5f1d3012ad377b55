/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Services for clients outside at XDP. Packets that need more than address translation and a
 * redirect are passed to tc.
 */
#ifndef PACKET_XDP_H
#define PACKET_XDP_H

#include "dsr.h"
#include "nodeport.h"
#include "vxlan.h"

/* Entries that counted the packet, with `bpf-conntrack-accounting`. */
#define COUNTED_SERVICE (1 << 0) /* the service's */
#define COUNTED_REQUEST (1 << 1) /* of the flow to the backend */
#define COUNTED_ANSWER (1 << 2)	 /* of the flow that it answers */

static __always_inline void set_xdp_metadata(CTX *ctx, __u32 what)
{
	__u32 *metadata;

	/* Not all drivers have room for metadata: tc then repeats the lookup. */
	if (bpf_xdp_adjust_meta(ctx, -(int)sizeof(*metadata)))
		return;
	metadata = PACKET_BOUND(ctx, data_meta);
	OPAQUE(metadata);
	if ((void *)(metadata + 1) > PACKET_BOUND(ctx, data))
		return;
	*metadata = what;
}

/* The service is left to tc: errors without backends, and local backends, with GRO. */
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

#include "../flow/table.h"

#endif /* PACKET_XDP_H */
