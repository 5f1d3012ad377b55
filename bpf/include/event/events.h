/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Ring buffers of events, one a CPU. */
#ifndef EVENT_EVENTS_H
#define EVENT_EVENTS_H

#include "../common/map.h"

MAP(cilium_events, BPF_MAP_TYPE_PERF_EVENT_ARRAY, __u32, __u32);

#endif /* EVENT_EVENTS_H */
