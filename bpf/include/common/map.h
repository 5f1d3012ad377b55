/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Declares a pinned map: name, type, key and value. User space creates and pins it with size and
 * flags before it loads a program (bpf/maps).
 */
#ifndef COMMON_MAP_H
#define COMMON_MAP_H

#include "compiler.h"

#ifdef __bpf__
#define MAP(name_, type_, key_, value_)                                                            \
	struct {                                                                                   \
		__uint(type, type_);                                                               \
		__type(key, key_);                                                                 \
		__type(value, value_);                                                             \
	} name_ SEC(".maps")

/* bpf_map_update_elem() where the error matters: in kernels before 6.4, which return it as `int`,
 * the upper half of what the helper returns has no sign.
 */
static __always_inline int map_update(void *map, const void *key, const void *value, __u64 flags)
{
	return (int)bpf_map_update_elem(map, key, value, flags);
}
#else
/* The host has layouts without maps. */
#define MAP(name_, type_, key_, value_) _Static_assert(sizeof(key_) && sizeof(value_), #name_)
#endif

#endif /* COMMON_MAP_H */
