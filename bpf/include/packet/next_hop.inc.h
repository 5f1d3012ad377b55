/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Next hops of one address family at XDP. */

/* Looks up the next hop of a packet of this L3 length; 0: any length. Returns 0, or as
 * bpf_fib_lookup().
 */
static __noinline long AF_FN(find_next_hop)(CTX *ctx, struct next_hop *next_hop,
					    AF_ADDRESS_IN source, AF_ADDRESS_IN destination,
					    __u16 length)
{
	struct bpf_fib_lookup fib = {};
	neighbour_key_t key;
	const struct neighbour *neighbour;
	const struct device *device;
	long found;

	AF_FN(init_fib_lookup)(ctx, source, destination, &fib);
	fib.tot_len = length;
	flow_note_mtu();
	found = bpf_fib_lookup(ctx, &fib, sizeof(fib), 0);
	next_hop->ifindex = fib.ifindex;
	if (found == BPF_FIB_LKUP_RET_SUCCESS) {
		copy_mac(next_hop->link.source, fib.smac);
		copy_mac(next_hop->link.destination, fib.dmac);
		return 0;
	}
	if (found != BPF_FIB_LKUP_RET_NO_NEIGH || fib.family != AF_FN(FIB_FAMILY))
		return found;
	/* The kernel does not resolve clients whose packets it never saw. */
#if AF == 4
	key.address = fib.ipv4_dst;
#else
	copy6(key.address, fib.ipv6_dst);
#endif
	neighbour = bpf_map_lookup_elem(&AF_FN(cilium_nodeport_neigh), &key);
	device = bpf_map_lookup_elem(&skep_devices, &next_hop->ifindex);
	if (!neighbour || !device)
		return found;
	copy_mac(next_hop->link.source, device->mac);
	copy_mac(next_hop->link.destination, neighbour->mac);
	return 0;
}
