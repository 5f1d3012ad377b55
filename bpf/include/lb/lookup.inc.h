/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Lookups of services of one address family. */

/* Master entry for traffic from this node: the internal scope where there are two. */
static __always_inline const struct lb_service *AF_FN(master)(lb_service_key_t *key)
{
	const struct lb_service *svc;

	key->backend_slot = 0;
	key->scope = LB_SCOPE_EXTERNAL;
	svc = bpf_map_lookup_elem(&SERVICES, key);
	if (svc && (svc->flags2 & LB2_TWO_SCOPES)) {
		key->scope = LB_SCOPE_INTERNAL;
		svc = bpf_map_lookup_elem(&SERVICES, key);
	}
	return svc;
}

/* Surrogate entry of a node address. With peers, NodePorts of other nodes count, and HostPorts. */
static __always_inline const struct lb_service *AF_FN(surrogate)(lb_service_key_t *key,
								 int host_netns, int peers)
{
	int in_range = in_nodeport_range(key->dport);
	int loopback = AF_FN(is_loopback)(key->address);

	if (!options.nodeport || (!in_range && !peers))
		return NULL;
	if ((!loopback || !host_netns) &&
	    !has_surrogates(AF_FN(ipcache_lookup)(key->address), in_range, peers))
		return NULL;
	AF_ZERO(key->address);
	return matching_surrogate(AF_FN(master)(key), in_range, loopback);
}
