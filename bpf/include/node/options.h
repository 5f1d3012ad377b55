/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Options of this node, for all programs: set before load; the verifier removes code that an option
 * rules out. Rust twin: NodeOptions in bpf/programs/src/options.rs
 */
#ifndef NODE_OPTIONS_H
#define NODE_OPTIONS_H

#include "../common/compiler.h"

struct node_options {
	__u64 host_netns_cookie;
	__u64 trace_interval; /* least nanoseconds between two events, 0 = all */
	__u32 kernel_hz;      /* ticks a second, with clock_jiffies */
	__u16 nodeport_min;   /* host order */
	__u16 nodeport_max;
	__u8 ipv4; /* translate IPv4, also in IPv6 sockets */
	__u8 ipv6;
	__u8 nodeport;		  /* look up NodePort and HostPort surrogates */
	__u8 host_only;		  /* leave sockets of pods alone */
	__u8 reject_no_endpoints; /* services without backends always answer with an error */
	__u8 external_ip_mitigation;
	__u8 local_redirect;
	__u8 mke; /* sockets with the MKE class id count as the host's */
	__u8 trace;
	__u8 trace_aggregation; /* 0 none ... 4 most */
	__u8 clock_jiffies;
	__u8 has_set_retval; /* bpf_set_retval exists (5.18) */
};
_Static_assert(sizeof(struct node_options) == 40, "node_options layout");

/* In .rodata: set before load, constant for the verifier. */
extern const volatile struct node_options options;

#endif /* NODE_OPTIONS_H */
