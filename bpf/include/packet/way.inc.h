/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Ways of one address family at XDP. */

/* Finds the way of a packet of this length from the network header on; 0: of any. Returns 0, or as
 * bpf_fib_lookup().
 */
static __noinline long AF_FN(find_way)(CTX *ctx, struct way *way, AF_ADDRESS_IN source,
				       AF_ADDRESS_IN destination, __u16 length)
{
	struct bpf_fib_lookup fib = {};
	struct AF_FN(neighbour_key) key;
	const struct neighbour *neighbour;
	const struct device *device;
	long found;

	AF_FN(ask_routes)(ctx, source, destination, &fib);
	fib.tot_len = length;
	found = bpf_fib_lookup(ctx, &fib, sizeof(fib), 0);
	way->ifindex = fib.ifindex;
	if (found == BPF_FIB_LKUP_RET_SUCCESS) {
		copy_mac(way->link.source, fib.smac);
		copy_mac(way->link.destination, fib.dmac);
		return 0;
	}
	if (found != BPF_FIB_LKUP_RET_NO_NEIGH || fib.family != AF_FN(FIB_FAMILY))
		return found;
	/* The kernel has not asked for a client whose packets it never saw. */
#if AF == 4
	key.address = fib.ipv4_dst;
#else
	copy6(key.address, fib.ipv6_dst);
#endif
	neighbour = bpf_map_lookup_elem(&AF_FN(cilium_nodeport_neigh), &key);
	device = bpf_map_lookup_elem(&skep_devices, &way->ifindex);
	if (!neighbour || !device)
		return found;
	copy_mac(way->link.source, device->mac);
	copy_mac(way->link.destination, neighbour->mac);
	return 0;
}
