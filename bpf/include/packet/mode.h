/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Forwarding mode of services: see dsr.h. */
#ifndef PACKET_MODE_H
#define PACKET_MODE_H

#include "../lb/service.h"
#include "../node/options.h"

enum dsr_dispatch {
	DSR_NONE = 0,
	DSR_OPTION = 1,
	DSR_IPIP = 2,
};

/* DSR applies to the service. */
static __always_inline int dsr_forwards(const struct lb_service *svc)
{
	/* Not supported with a tunnel. */
	return options.packet.dsr != DSR_NONE && !options.packet.tunnel &&
	       (options.packet.dsr_all || (svc->flags2 & LB2_DSR));
}

#endif /* PACKET_MODE_H */
