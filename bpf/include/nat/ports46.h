/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Ports of the node's IPv4 addresses, which answers to translated packets of both families come to.
 * Each family writes its own entry first and then looks at that of the other: of two that take a
 * port at one time, none keeps it.
 */
#ifndef NAT_PORTS46_H
#define NAT_PORTS46_H

#include "translate.h"

/* NAT64 has the port. */
static __noinline int nat_port_taken4(CTX *ctx, const struct nat_key4 *answers)
{
	struct nat_key6 key ALIGNED = {
		.dport = answers->dport,
		.sport = answers->sport,
		.proto = answers->proto == IPPROTO_ICMP ? IPPROTO_ICMPV6 : answers->proto,
		.flags = NAT_REVERSE,
	};

	(void)ctx;
	embed(key.daddr, answers->daddr);
	embed(key.saddr, answers->saddr);
	return bpf_map_lookup_elem(&cilium_snat_v6_external, &key) != NULL;
}

/* The source is of IPv4: a flow of that family, or a process, has the port. */
static __noinline int nat_port_taken6(CTX *ctx, const struct nat_key6 *answers)
{
	struct nat_key4 key ALIGNED = {
		.daddr = answers->daddr[3],
		.saddr = answers->saddr[3],
		.dport = answers->dport,
		.sport = answers->sport,
		.proto = answers->proto == IPPROTO_ICMPV6 ? IPPROTO_ICMP : answers->proto,
		.flags = NAT_REVERSE,
	};

	if (!is_embedded(answers->daddr))
		return 0;
	return bpf_map_lookup_elem(&cilium_snat_v4_external, &key) || nat_port_bound4(ctx, &key);
}

#endif /* NAT_PORTS46_H */
