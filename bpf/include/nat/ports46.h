/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* SNAT ports of the node's IPv4 addresses, shared by both families. Each family writes its own
 * entry before it checks the other's: of two concurrent allocations of a port, none succeeds.
 */
#ifndef NAT_PORTS46_H
#define NAT_PORTS46_H

#include "translate.h"

/* NAT64 has the port. */
static __noinline int nat_port_taken4(CTX *ctx, const struct nat_key4 *reverse_key)
{
	struct nat_key6 key ALIGNED = {
		.dport = reverse_key->dport,
		.sport = reverse_key->sport,
		.proto = reverse_key->proto == IPPROTO_ICMP ? IPPROTO_ICMPV6 : reverse_key->proto,
		.flags = NAT_REVERSE,
	};

	(void)ctx;
	embed(key.daddr, reverse_key->daddr);
	embed(key.saddr, reverse_key->saddr);
	return bpf_map_lookup_elem(&cilium_snat_v6_external, &key) != NULL;
}

/* The port is taken by an IPv4 flow or by a process. */
static __noinline int nat_port_taken6(CTX *ctx, const struct nat_key6 *reverse_key)
{
	struct nat_key4 key ALIGNED = {
		.daddr = reverse_key->daddr[3],
		.saddr = reverse_key->saddr[3],
		.dport = reverse_key->dport,
		.sport = reverse_key->sport,
		.proto = reverse_key->proto == IPPROTO_ICMPV6 ? IPPROTO_ICMP : reverse_key->proto,
		.flags = NAT_REVERSE,
	};

	if (!is_embedded(reverse_key->daddr))
		return 0;
	return bpf_map_lookup_elem(&cilium_snat_v4_external, &key) || nat_port_bound4(ctx, &key);
}

#endif /* NAT_PORTS46_H */
