/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* How a pinned map is declared: name, type, key and value. User space creates and pins it before it
 * loads a program that uses it, and sets its size and flags (bpf/maps).
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
#else
/* The host has layouts without maps. */
#define MAP(name_, type_, key_, value_) _Static_assert(sizeof(key_) && sizeof(value_), #name_)
#endif

#endif /* COMMON_MAP_H */
