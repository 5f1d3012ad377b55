/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Service maps: virtual address to backends. Rust twin: bpf/maps/src/lb/service.rs */
#ifndef LB_SERVICE_H
#define LB_SERVICE_H

#include <linux/types.h>

/* Slot 0 is the master entry, slots 1 to count + qcount name the backends. */
struct lb4_service_key {
	__be32 address; /* 0 in the NodePort and HostPort surrogate */
	__be16 dport;	/* 0 in the wildcard entry of an address */
	__u16 backend_slot;
	__u8 proto;  /* 0 in the wildcard entry of an address */
	__u8 scope;  /* enum lb_scope */
	__u8 pad[2]; /* always zero: keys are compared as bytes */
};
_Static_assert(sizeof(struct lb4_service_key) == 12, "lb4_service_key layout");
_Static_assert(__builtin_offsetof(struct lb4_service_key, backend_slot) == 6,
	       "lb4_service_key.backend_slot");
_Static_assert(__builtin_offsetof(struct lb4_service_key, scope) == 9, "lb4_service_key.scope");

struct lb6_service_key {
	__be32 address[4];
	__be16 dport;
	__u16 backend_slot;
	__u8 proto;
	__u8 scope;
	__u8 pad[2];
};
_Static_assert(sizeof(struct lb6_service_key) == 24, "lb6_service_key layout");
_Static_assert(__builtin_offsetof(struct lb6_service_key, backend_slot) == 18,
	       "lb6_service_key.backend_slot");
_Static_assert(__builtin_offsetof(struct lb6_service_key, scope) == 21, "lb6_service_key.scope");

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

/* flags2: bits 8-15 */
#define LB2_LOCAL_REDIRECT (1 << 0)
#define LB2_NAT46X64 (1 << 1)
#define LB2_L7 (1 << 2)
#define LB2_LOOPBACK (1 << 3) /* without LB_HOST_PORT: delegate if local */
#define LB2_INT_LOCAL (1 << 4)
#define LB2_TWO_SCOPES (1 << 5)

#define LB_AFFINITY_TIMEOUT_MASK 0xffffffU

static inline int lb_is_l7(const struct lb_service *svc)
{
	return svc->flags2 & LB2_L7;
}

static inline int lb_is_hostport(const struct lb_service *svc)
{
	return svc->flags & LB_HOST_PORT;
}

/* Hand over unmodified: a proxy on this node serves it. */
static inline int lb_delegates_if_local(const struct lb_service *svc)
{
	return (svc->flags2 & LB2_LOOPBACK) && !lb_is_hostport(svc);
}

/* Served on the node's own addresses by translation: no socket may take its port. */
static inline int lb_guards_port(const struct lb_service *svc)
{
	return (svc->flags & (LB_NODE_PORT | LB_EXTERNAL_IP | LB_LOAD_BALANCER)) &&
	       !lb_is_l7(svc) && !lb_delegates_if_local(svc);
}

/* The traffic policy that applies to this kind of frontend is Local. */
static inline int lb_policy_is_local(const struct lb_service *svc)
{
	if (svc->flags & (LB_EXTERNAL_IP | LB_NODE_PORT | LB_HOST_PORT | LB_LOAD_BALANCER))
		return svc->flags & LB_EXT_LOCAL;
	return svc->flags2 & LB2_INT_LOCAL;
}

#endif /* LB_SERVICE_H */
