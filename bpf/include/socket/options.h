/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* What the socket programs are told before they are loaded; code that an option rules out is
 * removed by the verifier. Rust side: skep_bpf_programs::SocketOptions
 */
#ifndef SOCKET_OPTIONS_H
#define SOCKET_OPTIONS_H

#include <linux/types.h>

struct socket_options {
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
_Static_assert(sizeof(struct socket_options) == 40, "socket_options layout");

/* In .rodata: set before load, constant for the verifier. */
extern const volatile struct socket_options options;

#endif /* SOCKET_OPTIONS_H */
