/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Whether backends of a service on other nodes answer clients themselves: see dsr.h. */
#ifndef PACKET_MODE_H
#define PACKET_MODE_H

#include "../lb/service.h"
#include "../node/options.h"

enum dsr_dispatch {
	DSR_NONE = 0,
	DSR_OPTION = 1,
	DSR_IPIP = 2,
};

/* Backends of the service on other nodes answer clients themselves. */
static __always_inline int dsr_forwards(const struct lb_service *svc)
{
	/* What says so would be lost in the tunnel. */
	return options.packet.dsr != DSR_NONE && !options.packet.tunnel &&
	       (options.packet.dsr_all || (svc->flags2 & LB2_DSR));
}

#endif /* PACKET_MODE_H */
