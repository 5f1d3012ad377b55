/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Decisions of socket load balancing that need no kernel. They compile for the host, too, and have
 * their unit tests there (bpf/programs/tests/host).
 */
#ifndef SOCKET_RULES_H
#define SOCKET_RULES_H

#include <asm/errno.h>
#include <linux/in.h>

#include "../common/af.h"
#include "../lb/service.h"
#include "../node/ipcache.h"

/* Outcome of a translation, besides negative errno values that reject the call. */
#define UNTRANSLATED 0
#define TRANSLATED 1

#define NSEC_PER_SEC 1000000000ULL

enum socket_call {
	CALL_CONNECT,
	CALL_SENDMSG,
	CALL_REVERSE,
};

static __always_inline int socket_proto_supported(__u32 proto)
{
	return proto == IPPROTO_TCP || proto == IPPROTO_UDP || proto == IPPROTO_UDPLITE;
}

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

/* A node address has surrogate entries. With peers, NodePorts of other nodes are served, too. */
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

/* Addresses that any manifest may name: translated only if they belong to this host. */
static __always_inline int needs_host_address(const struct lb_service *svc, int loopback,
					      int external_ip_mitigation)
{
	return (external_ip_mitigation && (svc->flags & LB_EXTERNAL_IP)) ||
	       (lb_is_hostport(svc) && !loopback);
}

/* Outcome of a call to a service without backends. */
static __always_inline int no_backends(const struct lb_service *svc, int reject_no_endpoints)
{
	if (reject_no_endpoints || lb_policy_is_local(svc))
		return -EHOSTUNREACH;
	return UNTRANSLATED;
}

/* The service that a socket asked for still exists and has backends. */
static __always_inline int still_served(const struct lb_service *svc, __be16 rev_nat)
{
	return svc && svc->rev_nat_index == rev_nat && (svc->count || lb_is_l7(svc));
}

/* The aggregation level leaves events of this call. */
static __always_inline int trace_level_allows(__u8 aggregation, enum socket_call call)
{
	if (aggregation >= 1 && call == CALL_REVERSE)
		return 0;
	return aggregation < 3 || call == CALL_CONNECT;
}

#endif /* SOCKET_RULES_H */
