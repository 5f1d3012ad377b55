/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Garbage collection: removes entries of flows that have ended, with how they were translated, and
 * translations that nothing tracks. Iterators over the maps (Linux 5.9): reading one runs it.
 */
#include "conntrack/collect.h"

const volatile struct node_options options = {};

SEC("iter/bpf_map_elem")
int skep_gc_tcp4(struct bpf_iter__bpf_map_elem *ctx)
{
	return gc_flow4(ctx, &cilium_ct4_global);
}

SEC("iter/bpf_map_elem")
int skep_gc_any4(struct bpf_iter__bpf_map_elem *ctx)
{
	return gc_flow4(ctx, &cilium_ct_any4_global);
}

SEC("iter/bpf_map_elem")
int skep_gc_tcp6(struct bpf_iter__bpf_map_elem *ctx)
{
	return gc_flow6(ctx, &cilium_ct6_global);
}

SEC("iter/bpf_map_elem")
int skep_gc_any6(struct bpf_iter__bpf_map_elem *ctx)
{
	return gc_flow6(ctx, &cilium_ct_any6_global);
}

SEC("iter/bpf_map_elem")
int skep_gc_nat4(struct bpf_iter__bpf_map_elem *ctx)
{
	return gc_translation4(ctx);
}

SEC("iter/bpf_map_elem")
int skep_gc_nat6(struct bpf_iter__bpf_map_elem *ctx)
{
	return gc_translation6(ctx);
}

/* Linux 6.6 */
extern __s64 bpf_map_sum_elem_count(const struct bpf_map *map) __ksym __weak;

/* Entries of the conntrack and NAT maps. Rust twin: Counts in bpf/programs/src/collect.rs */
struct gc_counts {
	__u64 known; /* the kernel counts entries */
	__u64 tcp4;
	__u64 any4;
	__u64 tcp6;
	__u64 any6;
	__u64 nat4;
	__u64 nat6;
};

static __always_inline __u64 gc_entries(void *map)
{
	__s64 entries = bpf_map_sum_elem_count(map);

	/* Counters of CPUs are not read at one time. */
	return entries > 0 ? entries : 0;
}

SEC("syscall")
int skep_gc_count(struct gc_counts *counts)
{
	if (!bpf_map_sum_elem_count)
		return 0;
	counts->tcp4 = gc_entries(&cilium_ct4_global);
	counts->any4 = gc_entries(&cilium_ct_any4_global);
	counts->tcp6 = gc_entries(&cilium_ct6_global);
	counts->any6 = gc_entries(&cilium_ct_any6_global);
	counts->nat4 = gc_entries(&cilium_snat_v4_external);
	counts->nat6 = gc_entries(&cilium_snat_v6_external);
	counts->known = 1;
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
