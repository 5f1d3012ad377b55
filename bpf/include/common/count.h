/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Counts the helpers that programs call, for measurements: objects that are compiled with
 * COUNT_CALLS call lookups and updates of maps, and lookups of routes and sockets, by what is
 * defined here. Needs Linux 5.9: the kind of a map is read from the kernel.
 */
#ifndef COMMON_COUNT_H
#define COMMON_COUNT_H

/* More than the kernel has kinds of maps (enum bpf_map_type). */
#define COUNTED_KINDS 64

/* Rust twin: `Calls` in bpf/programs/src/count.rs. */
struct helper_calls {
	__u64 lookups[COUNTED_KINDS]; /* by kind of map */
	__u64 updates;
	__u64 routes;
	__u64 sockets;
};

/* Of one CPU: measurements stay on one. */
struct helper_calls helper_calls = {};

/* Of the kernel. */
struct bpf_map {
	enum bpf_map_type map_type;
} __attribute__((preserve_access_index));

static __always_inline void *counted_map_lookup_elem(void *map, const void *key)
{
	__u32 kind = ((struct bpf_map *)map)->map_type;

	if (kind < COUNTED_KINDS)
		helper_calls.lookups[kind]++;
	return bpf_map_lookup_elem(map, key);
}
#define bpf_map_lookup_elem counted_map_lookup_elem

#define bpf_map_update_elem(...) (helper_calls.updates++, bpf_map_update_elem(__VA_ARGS__))
#define bpf_fib_lookup(...) (helper_calls.routes++, bpf_fib_lookup(__VA_ARGS__))
#define bpf_sk_lookup_tcp(...) (helper_calls.sockets++, bpf_sk_lookup_tcp(__VA_ARGS__))
#define bpf_sk_lookup_udp(...) (helper_calls.sockets++, bpf_sk_lookup_udp(__VA_ARGS__))

#endif /* COMMON_COUNT_H */
