/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Flow table: results of the programs for packets of known flows. Rust twin: bpf/maps/src/flow.rs.
 * Rules: docs/datapath.md, "Flow table".
 */
#ifndef FLOW_FLOW_H
#define FLOW_FLOW_H

#include "../common/af.h"
#include "../common/map.h"
#include "../endpoint/policy.h"
#include "../event/metrics.h"

/* Hooks of a key. An interface has one program at each. */
enum flow_hook {
	FLOW_INGRESS = 0,
	FLOW_EGRESS = 1,
	FLOW_XDP = 2,
};

enum flow_exit {
	FLOW_PASS = 1,
	FLOW_REDIRECT = 2,
	FLOW_PEER = 3,
	FLOW_NEIGHBOUR = 4,
	FLOW_TUNNEL = 5,
	FLOW_TX = 6,
};

/* changes */
#define FLOW_NEW_MACS (1 << 0)
#define FLOW_NEW_TUPLE (1 << 1)
#define FLOW_NEW_MARK (1 << 2)

#define FLOW_COUNTERS 3
#define FLOW_POLICIES 2
#define FLOW_ANY_LENGTH 0xffff

/* Of an entry of either address family. */
struct flow {
	__u32 epoch;
	__u32 now; /* on the clock of maps: valid until its next tick */
	__u32 mark_before;
	__u32 mark_after;
	__u32 input;	 /* VNI of the packet, or metadata of XDP */
	__u32 ifindex;	 /* of a redirect */
	__u32 tunnel_id; /* VNI to send with */
	__u32 addresses; /* differences of checksums */
	__u32 ports;
	__u16 length; /* longest packet known to fit the MTU */
	__u8 exit;
	__u8 redirect_flags;
	__u8 tcp_flags; /* already reported */
	__u8 hops;	/* decrement of the hop limit */
	__u8 changes;
	__u8 next_family; /* AF_INET or AF_INET6; of a tunnel IPCACHE_TUNNEL_IPV6 */
	__u8 counters;
	__u8 policies;
	__u8 pad[2];
	__be32 next[4]; /* next hop, or tunnel endpoint */
	__u8 macs[12];
	struct metrics_key counted[FLOW_COUNTERS];
	struct policy_stats_key allowed[FLOW_POLICIES];
};
_Static_assert(sizeof(struct flow) == 124, "flow layout");
_Static_assert(__builtin_offsetof(struct flow, length) == 36, "flow.length");
_Static_assert(__builtin_offsetof(struct flow, macs) == 64, "flow.macs");

/* Counters of the table, one index each. */
enum flow_counter {
	FLOW_HIT = 0,
	FLOW_UNKNOWN = 1,   /* no entry */
	FLOW_OLD_EPOCH = 2, /* a map has changed, or is being written */
	FLOW_OLD_TICK = 3,
	FLOW_DIFFERENT = 4, /* mark, VNI, length, hop limit or TCP flags */
	FLOW_NOT_PLAIN = 5,
	FLOW_RECORDED = 6,
	FLOW_RAISED = 7, /* by programs */
	FLOW_COUNTS = 8,
};

/* Rust twin: bpf/sys/src/store/epoch.rs. */
struct flow_epoch {
	__u32 epoch;   /* flows of other epochs are invalid */
	__u32 writers; /* flows are neither looked up nor recorded while a map is written */
};
_Static_assert(sizeof(struct flow_epoch) == 8, "flow_epoch layout");

MAP(skep_epoch, BPF_MAP_TYPE_ARRAY, __u32, struct flow_epoch);
MAP(skep_flow_stats, BPF_MAP_TYPE_PERCPU_ARRAY, __u32, __u64);

#define AF 4
#include "flow.inc.h"
#undef AF
#define AF 6
#include "flow.inc.h"
#undef AF

#endif /* FLOW_FLOW_H */
