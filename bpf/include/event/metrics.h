/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Counters. Rust twin: bpf/maps/src/event.rs */
#ifndef EVENT_METRICS_H
#define EVENT_METRICS_H

#include "../common/map.h"

struct metrics_key {
	__u8 reason;
	__u8 direction; /* bits 0-1, rest zero */
	__u16 line;
	__u8 file;
	__u8 reserved[3];
};
_Static_assert(sizeof(struct metrics_key) == 8, "metrics_key layout");

struct metrics_value {
	__u64 count;
	__u64 bytes;
};
_Static_assert(sizeof(struct metrics_value) == 16, "metrics_value layout");

MAP(cilium_metrics, BPF_MAP_TYPE_PERCPU_HASH, struct metrics_key, struct metrics_value);

/* direction */
#define METRIC_INGRESS 1
#define METRIC_EGRESS 2
#define METRIC_SERVICE 3

#define METRIC_LB_NO_BACKEND_SLOT 5
#define METRIC_LB_NO_BACKEND 6
#define METRIC_LB_REVERSE_UPDATE 7
#define METRIC_LB_REVERSE_STALE 8
#define METRIC_LB_REVERSE_DELETE 14

/* Numbers of source files, by the names that readers show for them. */
#define METRIC_FILE_HOST 1    /* bpf_host.c */
#define METRIC_FILE_LXC 2     /* bpf_lxc.c */
#define METRIC_FILE_OVERLAY 3 /* bpf_overlay.c */
#define METRIC_FILE_XDP 4     /* bpf_xdp.c */
#define METRIC_FILE_SOCK 5    /* bpf_sock.c */
#define METRIC_FILE_NODEPORT 104
#define METRIC_FILE_CONNTRACK 108
#define METRIC_FILE_LOCAL_DELIVERY 109
#define METRIC_FILE_ENCAP 111
#define METRIC_FILE_EGRESS 113

#ifdef __bpf__
static __always_inline void count_bytes(__u8 reason, __u8 direction, __u16 line, __u8 file,
					__u64 bytes)
{
	struct metrics_key key = {
		.reason = reason,
		.direction = direction,
		.line = line,
		.file = file,
	};
	struct metrics_value first = {.count = 1, .bytes = bytes};
	struct metrics_value *value = bpf_map_lookup_elem(&cilium_metrics, &key);

	if (value) {
		value->count++;
		value->bytes += bytes;
	} else {
		bpf_map_update_elem(&cilium_metrics, &key, &first, BPF_ANY);
	}
}

#define COUNT_SERVICE(reason) count_bytes(reason, METRIC_SERVICE, __LINE__, METRIC_FILE_SOCK, 0)
#endif

#endif /* EVENT_METRICS_H */
