/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Contexts of iterators. Offsets are relocated at load (CO-RE); only names and types must be right.
 * For programs that include no other kernel header than linux/bpf.h.
 */
#ifndef COMMON_ITER_H
#define COMMON_ITER_H

#include <linux/types.h>

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct bpf_map {
	__u32 id;
};

struct seq_file {
	void *private;
};

struct bpf_iter_meta {
	struct seq_file *seq;
} __attribute__((aligned(8)));

/* Position of an iterator of a hash map. */
struct bpf_iter_seq_hash_map_info {
	__u32 skip_elems; /* entries of the bucket before this one */
};

/* Key and value are NULL in the last call of a read that reaches the end. */
struct bpf_iter__bpf_map_elem {
	struct bpf_iter_meta *meta;
	struct bpf_map *map;
	void *key;
	void *value;
} __attribute__((aligned(8)));

#pragma clang attribute pop

#endif /* COMMON_ITER_H */
