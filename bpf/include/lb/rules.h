/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Pure load-balancing logic of sockets and packets. Compiles for the host, with unit tests in
 * bpf/programs/tests/host.
 */
#ifndef LB_RULES_H
#define LB_RULES_H

#include "../node/ipcache.h"
#include "service.h"

static __always_inline int port_in_range(__be16 port, __u16 min, __u16 max)
{
	__u16 host_order = bpf_ntohs(port);

	return host_order >= min && host_order <= max;
}

/* Slot of a backend, 1 to count, for a random or hashed value. */
static __always_inline __u16 slot_of(__u64 value, __u16 count)
{
	return value % count + 1;
}

/* Timeout of an affinity in units of its clock: seconds, or ticks / 256 with `hz` ticks a second.
 */
static __always_inline __u64 affinity_timeout(const struct lb_service *svc, int clock_jiffies,
					      __u32 hz)
{
	__u64 seconds = svc->backend_id & LB_AFFINITY_TIMEOUT_MASK;

	return clock_jiffies ? (seconds * hz) >> 8 : seconds;
}

/* A node address with surrogate entries. With peers, NodePorts of other nodes are included. */
static __always_inline int has_surrogates(const struct ipcache_value *address, int in_range,
					  int peers)
{
	return ipcache_is_host(address) || (peers && in_range && ipcache_is_peer_node(address));
}

/* The surrogate entry, if its kind matches the port: NodePort in the range, HostPort elsewhere. */
static __always_inline const struct lb_service *matching_surrogate(const struct lb_service *svc,
								   int in_range, int loopback)
{
	if (!svc)
		return NULL;
	if (in_range)
		return svc->flags & LB_NODE_PORT ? svc : NULL;
	if (!lb_is_hostport(svc) || ((svc->flags2 & LB2_LOOPBACK) && !loopback))
		return NULL;
	return svc;
}

#endif /* LB_RULES_H */
