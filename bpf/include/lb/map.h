/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* How a load-balancer map is declared. */
#ifndef LB_MAP_H
#define LB_MAP_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#define LB_MAP(name_, type_, key_, value_, entries_, flags_)                                       \
	struct {                                                                                   \
		__uint(type, type_);                                                               \
		__type(key, key_);                                                                 \
		__type(value, value_);                                                             \
		__uint(max_entries, entries_);                                                     \
		__uint(map_flags, flags_);                                                         \
	} name_ SEC(".maps")

#endif /* LB_MAP_H */
