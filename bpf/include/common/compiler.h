/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Compiler support for layouts and pure logic, which compile for BPF and, for unit tests, for the
 * host (bpf/programs/tests/host).
 */
#ifndef COMMON_COMPILER_H
#define COMMON_COMPILER_H

#include <linux/types.h>

#ifdef __bpf__
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#ifdef COUNT_CALLS
#include "count.h"
#endif
#else
#include <stddef.h>
#undef __always_inline
#define __always_inline inline __attribute__((always_inline, unused))
#endif

#include <bpf/bpf_endian.h>

/* Hides from the compiler where a value comes from: it would combine pointers with logic that the
 * verifier does not allow on them.
 */
#define OPAQUE(value_) asm volatile("" : "+r"(value_))

/* Keeps rare branches out of line, so that the common path is contiguous. */
#define LIKELY(condition_) __builtin_expect(!!(condition_), 1)

/* For variables of packed types: the verifier wants words on the stack where words belong. */
#define ALIGNED __attribute__((aligned(8)))

#endif /* COMMON_COMPILER_H */
