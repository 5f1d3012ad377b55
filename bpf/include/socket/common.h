/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Socket translation, independent of the address family. */
#ifndef SOCKET_COMMON_H
#define SOCKET_COMMON_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "../event/metrics.h"
#include "../event/ratelimit.h"
#include "../event/socket_trace.h"
#include "../lb/backend.h"
#include "../lb/reverse_sk.h"
#include "../lb/service.h"
#include "../lb/skip.h"
#include "../lb/sticky.h"
#include "../node/ipcache.h"
#include "../node/options.h"
#include "rules.h"

/* Return values of cgroup programs. */
#define SOCKET_REJECT 0
#define SOCKET_PROCEED 1

#define MKE_CLASS_ID 0x1BDA7A

/* The caller gets the error if the kernel can pass it on, else EPERM. */
static __always_inline int socket_verdict(int outcome)
{
	if (outcome >= 0)
		return SOCKET_PROCEED;
	if (options.has_set_retval)
		bpf_set_retval(outcome);
	return SOCKET_REJECT;
}

/* Reverse hooks cannot reject calls. */
static __always_inline int call_verdict(enum socket_call call, int outcome)
{
	return call == CALL_REVERSE ? SOCKET_PROCEED : socket_verdict(outcome);
}

static __always_inline int socket_in_host_netns(void *ctx)
{
	if (options.mke && bpf_get_cgroup_classid(ctx) == MKE_CLASS_ID)
		return 1;
	return bpf_get_netns_cookie(ctx) == options.host_netns_cookie;
}

/* A slot for a new connection, 1 to count. Datagrams of one socket stay with one backend. */
static __always_inline __u16 choose_slot(void *ctx, __u8 proto, __u16 count)
{
	return slot_of(proto == IPPROTO_TCP ? bpf_get_prandom_u32() : bpf_get_socket_cookie(ctx),
		       count);
}

/* Keys and backends differ by family; services, affinities and ids do not. What follows needs only
 * the latter, and takes the maps as arguments.
 */

/* Backend that a slot entry names. */
static __always_inline const void *slot_backend(void *services, void *backends,
						const void *slot_key, __u32 *backend_id)
{
	const struct lb_service *slot = bpf_map_lookup_elem(services, slot_key);
	const void *backend;

	if (!slot) {
		COUNT_SERVICE(METRIC_LB_NO_BACKEND_SLOT);
		return NULL;
	}
	*backend_id = slot->backend_id;
	backend = bpf_map_lookup_elem(backends, backend_id);
	if (!backend)
		COUNT_SERVICE(METRIC_LB_NO_BACKEND);
	return backend;
}

static __always_inline int trace_wanted(enum socket_call call)
{
	__u8 level = options.trace_aggregation;

	if (!options.trace || !trace_level_allows(level, call))
		return 0;
	if (level >= 1 && options.trace_interval)
		return ratelimit_take(RATELIMIT_SOCKET_EVENTS, options.trace_interval);
	return 1;
}

static __always_inline void trace_send(struct bpf_sock_addr *ctx, struct socket_trace *event,
				       __u8 proto)
{
	event->kind = SOCKET_TRACE_KIND;
	event->l4_proto = proto == IPPROTO_TCP ? 1 : proto == IPPROTO_UDP ? 2 : 0;
	event->cookie = bpf_get_socket_cookie(ctx);
	event->cgroup_id = bpf_get_current_cgroup_id();
	bpf_perf_event_output(ctx, &cilium_events, BPF_F_CURRENT_CPU, event, sizeof(*event));
}

#endif /* SOCKET_COMMON_H */
