/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Clock of maps: affinities, connections, translations. */
#ifndef NODE_CLOCK_H
#define NODE_CLOCK_H

#include "options.h"

#define NSEC_PER_SEC 1000000000ULL

/* Monotonic seconds, or ticks / 256. */
static __always_inline __u64 clock_now(void)
{
	if (options.clock_jiffies)
		return bpf_jiffies64() >> 8;
	/* Accurate to a tick, and cheaper than the exact time. */
	return bpf_ktime_get_coarse_ns() / NSEC_PER_SEC;
}

#endif /* NODE_CLOCK_H */
