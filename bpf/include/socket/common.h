/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* What translation of both address families shares. */
#ifndef SOCKET_COMMON_H
#define SOCKET_COMMON_H

#include <asm/errno.h>
#include <linux/bpf.h>
#include <linux/in.h>
#include <linux/types.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "../event/metrics.h"
#include "../event/ratelimit.h"
#include "../event/socket_trace.h"
#include "../lb/maps.h"
#include "../node/ipcache.h"
#include "address.h"
#include "options.h"

/* What a cgroup program returns. */
#define SOCKET_REJECT 0
#define SOCKET_PROCEED 1

/* Outcome of a translation, besides negative error numbers that reject the call. */
#define UNTRANSLATED 0
#define TRANSLATED 1

#define MKE_CLASS_ID 0x1BDA7A
#define NSEC_PER_SEC 1000000000ULL

enum socket_call {
	CALL_CONNECT,
	CALL_SENDMSG,
	CALL_REVERSE,
};

/* The caller gets the error if the kernel can pass it on, else EPERM. */
static __always_inline int socket_verdict(int outcome)
{
	if (outcome >= 0)
		return SOCKET_PROCEED;
	if (options.has_set_retval)
		bpf_set_retval(outcome);
	return SOCKET_REJECT;
}

/* The kernel does not let the hooks that translate back reject anything. */
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

static __always_inline int socket_proto_supported(__u32 proto)
{
	return proto == IPPROTO_TCP || proto == IPPROTO_UDP || proto == IPPROTO_UDPLITE;
}

static __always_inline int port_in_nodeport_range(__be16 port)
{
	__u16 number = bpf_ntohs(port);

	return number >= options.nodeport_min && number <= options.nodeport_max;
}

/* Clock of the affinity maps. */
static __always_inline __u64 affinity_now(void)
{
	if (options.clock_jiffies)
		return bpf_jiffies64() >> 8;
	return bpf_ktime_get_ns() / NSEC_PER_SEC;
}

static __always_inline __u64 affinity_timeout(const struct lb_service *svc)
{
	__u64 seconds = svc->backend_id & LB_AFFINITY_TIMEOUT_MASK;

	if (options.clock_jiffies)
		return (seconds * options.kernel_hz) >> 8;
	return seconds;
}

static __always_inline int affinity_matches(__u32 backend_id, __be16 rev_nat)
{
	struct lb_affinity_match_key key = {
		.backend_id = backend_id,
		.rev_nat_id = rev_nat,
	};

	return bpf_map_lookup_elem(&cilium_lb_affinity_match, &key) != NULL;
}

/* A slot for a new connection, 1 to count. Datagrams of one socket stay with one backend. */
static __always_inline __u16 choose_slot(void *ctx, __u8 proto, __u16 count)
{
	__u64 number = proto == IPPROTO_TCP ? bpf_get_prandom_u32() : bpf_get_socket_cookie(ctx);

	return number % count + 1;
}

/* The maps of the two families hold keys and backends of their own, and services, affinities and
 * ids of one kind. What follows needs only the latter, so it is told which maps to use.
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

/* The backend that the network namespace talked to before, if it is still one of the service's. */
static __always_inline const void *sticky_backend(void *affinities, void *backends,
						  const void *client, const struct lb_service *svc,
						  __u32 *backend_id)
{
	const struct lb_affinity *seen = bpf_map_lookup_elem(affinities, client);
	const void *backend;
	__u32 id;

	if (!seen)
		return NULL;
	id = seen->backend_id;
	if (seen->last_used + affinity_timeout(svc) > affinity_now() &&
	    affinity_matches(id, svc->rev_nat_index)) {
		backend = bpf_map_lookup_elem(backends, &id);
		if (backend) {
			*backend_id = id;
			return backend;
		}
	}
	bpf_map_delete_elem(affinities, client);
	return NULL;
}

/* The network namespace stays with this backend from now on. */
static __always_inline void stick(void *affinities, const void *client, __u32 backend_id)
{
	struct lb_affinity *seen = bpf_map_lookup_elem(affinities, client);
	struct lb_affinity value = {.last_used = affinity_now(), .backend_id = backend_id};

	if (seen && seen->backend_id == backend_id)
		seen->last_used = value.last_used;
	else
		bpf_map_update_elem(affinities, client, &value, BPF_ANY);
}

/* A node address leads to the surrogate entries. With peers, other nodes' serve NodePorts, too. */
static __always_inline int has_surrogates(const struct ipcache_value *address, int in_range,
					  int peers)
{
	return ipcache_is_host(address) || (peers && in_range && ipcache_is_peer_node(address));
}

/* The surrogate entry, if it is of the kind that the port asks for. */
static __always_inline const struct lb_service *fitting_surrogate(const struct lb_service *svc,
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

/* Addresses that anybody may name in a manifest: translated only if they are this host's. */
static __always_inline int needs_host_address(const struct lb_service *svc, int loopback)
{
	return (options.external_ip_mitigation && (svc->flags & LB_EXTERNAL_IP)) ||
	       (lb_is_hostport(svc) && !loopback);
}

/* Outcome of a call to a service without backends. */
static __always_inline int unserved(const struct lb_service *svc)
{
	if (options.reject_no_endpoints || lb_policy_is_local(svc))
		return -EHOSTUNREACH;
	return UNTRANSLATED;
}

/* What a socket asked for is still the service it was sent on for. */
static __always_inline int still_served(const struct lb_service *svc, __be16 rev_nat)
{
	return svc && svc->rev_nat_index == rev_nat && (svc->count || lb_is_l7(svc));
}

static __always_inline int trace_wanted(enum socket_call call)
{
	if (!options.trace)
		return 0;
	if (options.trace_aggregation >= 1 && call == CALL_REVERSE)
		return 0;
	if (options.trace_aggregation >= 3 && call != CALL_CONNECT)
		return 0;
	if (options.trace_aggregation >= 1 && options.trace_interval)
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
