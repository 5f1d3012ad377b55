/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Service maps: virtual address to backends. Rust twin: bpf/maps/src/lb/service.rs */
#ifndef LB_SERVICE_H
#define LB_SERVICE_H

#include "../common/af.h"
#include "../common/map.h"

struct lb_service {
	/* Slots: backend id. Master, in the same bytes: affinity timeout in seconds (bits 0-23) and
	 * algorithm (bits 24-31), or the L7 proxy port in network order in the first two bytes.
	 */
	__u32 backend_id;
	__u16 count;	      /* backends that may get new connections */
	__be16 rev_nat_index; /* service id, opaque here */
	__u8 flags;
	__u8 flags2;
	__u16 qcount; /* slots behind count: inactive backends */
};
_Static_assert(sizeof(struct lb_service) == 12, "lb_service layout");
_Static_assert(__builtin_offsetof(struct lb_service, count) == 4, "lb_service.count");
_Static_assert(__builtin_offsetof(struct lb_service, rev_nat_index) == 6,
	       "lb_service.rev_nat_index");
_Static_assert(__builtin_offsetof(struct lb_service, flags) == 8, "lb_service.flags");
_Static_assert(__builtin_offsetof(struct lb_service, flags2) == 9, "lb_service.flags2");
_Static_assert(__builtin_offsetof(struct lb_service, qcount) == 10, "lb_service.qcount");

#define AF 4
#include "service.inc.h"
#undef AF
#define AF 6
#include "service.inc.h"
#undef AF

enum lb_scope {
	LB_SCOPE_EXTERNAL = 0,
	LB_SCOPE_INTERNAL = 1,
};

/* flags: bits 0-7 of ServiceFlags in bpf/maps/src/lb/flags.rs */
#define LB_EXTERNAL_IP (1 << 0)
#define LB_NODE_PORT (1 << 1)
#define LB_EXT_LOCAL (1 << 2)
#define LB_HOST_PORT (1 << 3)
#define LB_AFFINITY (1 << 4)
#define LB_LOAD_BALANCER (1 << 5)
#define LB_ROUTABLE (1 << 6)
#define LB_SOURCE_RANGE (1 << 7)

/* flags2: bits 8-15 */
#define LB2_LOCAL_REDIRECT (1 << 0)
#define LB2_NAT46X64 (1 << 1)
#define LB2_L7 (1 << 2)
#define LB2_LOOPBACK (1 << 3) /* without LB_HOST_PORT: delegate if local */
#define LB2_INT_LOCAL (1 << 4)
#define LB2_TWO_SCOPES (1 << 5)
#define LB2_DENY_SOURCES (1 << 6) /* source ranges list who may not */
#define LB2_DSR (1 << 7)	  /* DSR to backends on other nodes */

#define LB_AFFINITY_TIMEOUT_MASK 0xffffffU

/* Load-balancing algorithm of a service; 0: the node's. */
#define LB_ALGORITHM_RANDOM 1
#define LB_ALGORITHM_MAGLEV 2

static __always_inline __u8 lb_algorithm(const struct lb_service *master)
{
	return master->backend_id >> 24;
}

static __always_inline int lb_is_l7(const struct lb_service *svc)
{
	return svc->flags2 & LB2_L7;
}

static __always_inline int lb_is_hostport(const struct lb_service *svc)
{
	return svc->flags & LB_HOST_PORT;
}

/* Pass unmodified to the L7 proxy on this node. */
static __always_inline int lb_delegates_if_local(const struct lb_service *svc)
{
	return (svc->flags2 & LB2_LOOPBACK) && !lb_is_hostport(svc);
}

/* Served on the node's own addresses by translation: no socket may take its port. */
static __always_inline int lb_guards_port(const struct lb_service *svc)
{
	return (svc->flags & (LB_NODE_PORT | LB_EXTERNAL_IP | LB_LOAD_BALANCER)) &&
	       !lb_is_l7(svc) && !lb_delegates_if_local(svc);
}

/* The traffic policy that applies to this kind of frontend is Local. */
static __always_inline int lb_policy_is_local(const struct lb_service *svc)
{
	if (svc->flags & (LB_EXTERNAL_IP | LB_NODE_PORT | LB_HOST_PORT | LB_LOAD_BALANCER))
		return svc->flags & LB_EXT_LOCAL;
	return svc->flags2 & LB2_INT_LOCAL;
}

#endif /* LB_SERVICE_H */
