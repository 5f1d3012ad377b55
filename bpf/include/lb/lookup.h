/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Service lookup for traffic of this node, of sockets and packets. */
#ifndef LB_LOOKUP_H
#define LB_LOOKUP_H

#include "../node/options.h"
#include "rules.h"

/* Map of the family that AF names. */
#define SERVICES AF_JOIN(cilium_lb, _services_v2)

static __always_inline int in_nodeport_range(__be16 port)
{
	return port_in_range(port, options.nodeport_min, options.nodeport_max);
}

#define AF 4
#include "lookup.inc.h"
#undef AF
#define AF 6
#include "lookup.inc.h"
#undef AF

#endif /* LB_LOOKUP_H */
