/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Maglev tables of one address family. The inner map has one entry, the whole table. User space
 * creates both with the size of the table.
 */

#ifdef __bpf__
struct {
	__uint(type, BPF_MAP_TYPE_HASH_OF_MAPS);
	__type(key, __be16);
	__array(
		values, struct {
			__uint(type, BPF_MAP_TYPE_ARRAY);
			__uint(key_size, sizeof(__u32));
			__uint(value_size, sizeof(__u32));
			__uint(max_entries, 1);
		});
} AF_JOIN(cilium_lb, _maglev) SEC(".maps");
#endif
