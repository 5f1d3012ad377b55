/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Session affinity of sockets and packets. Independent of the address family: maps are arguments.
 */
#ifndef LB_STICKY_H
#define LB_STICKY_H

#include "../node/clock.h"
#include "affinity.h"
#include "rules.h"

static __always_inline int affinity_matches(__u32 backend_id, __be16 rev_nat)
{
	struct lb_affinity_match_key key = {
		.backend_id = backend_id,
		.rev_nat_id = rev_nat,
	};

	return bpf_map_lookup_elem(&cilium_lb_affinity_match, &key) != NULL;
}

/* Returns the client's backend, if it still belongs to the service. */
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
	if (seen->last_used + affinity_timeout(svc, options.clock_jiffies, options.kernel_hz) >
		    clock_now() &&
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

/* Sets the client's backend. */
static __always_inline void stick(void *affinities, const void *client, __u32 backend_id)
{
	struct lb_affinity *seen = bpf_map_lookup_elem(affinities, client);
	struct lb_affinity value = {.last_used = clock_now(), .backend_id = backend_id};

	if (seen && seen->backend_id == backend_id)
		seen->last_used = value.last_used;
	else
		bpf_map_update_elem(affinities, client, &value, BPF_ANY);
}

/* Refreshes the client's affinity to the backend of an existing flow, unless it has changed. */
static __always_inline void stick_on(void *affinities, const void *client, __u32 backend_id)
{
	const struct lb_affinity *seen = bpf_map_lookup_elem(affinities, client);

	if (!seen || seen->backend_id == backend_id)
		stick(affinities, client, backend_id);
}

#endif /* LB_STICKY_H */
