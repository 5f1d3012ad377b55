/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Signals to the agent: a map is full. Rust twin: Signal in cells/datapath/conntrack/src/signals.rs
 */
#ifndef EVENT_SIGNAL_H
#define EVENT_SIGNAL_H

#include "../common/map.h"

#define SIGNAL_NAT_FULL 0 /* many retries of source port allocation */
#define SIGNAL_CT_FULL 1  /* an entry was not written */

struct signal {
	__u32 kind;
	__u32 ipv6;
};
_Static_assert(sizeof(struct signal) == 8, "signal layout");

/* Ring buffers, one a CPU; none while the agent answers. */
MAP(cilium_signals, BPF_MAP_TYPE_PERF_EVENT_ARRAY, __u32, __u32);

#endif /* EVENT_SIGNAL_H */
