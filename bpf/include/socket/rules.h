/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Pure logic of socket load balancing. Compiles for the host, with unit tests in
 * bpf/programs/tests/host.
 */
#ifndef SOCKET_RULES_H
#define SOCKET_RULES_H

#include <asm/errno.h>
#include <linux/in.h>

#include "../common/af.h"
#include "../lb/rules.h"

/* Outcome of a translation, besides negative errno values that reject the call. */
#define UNTRANSLATED 0
#define TRANSLATED 1

enum socket_call {
	CALL_CONNECT,
	CALL_SENDMSG,
	CALL_REVERSE,
};

static __always_inline int socket_proto_supported(__u32 proto)
{
	return proto == IPPROTO_TCP || proto == IPPROTO_UDP || proto == IPPROTO_UDPLITE;
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
