/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Socket trace events. Rust twin: bpf/maps/src/event.rs */
#ifndef EVENT_SOCKET_TRACE_H
#define EVENT_SOCKET_TRACE_H

#include "../common/map.h"
#include "events.h"

struct socket_trace {
	__u8 kind; /* SOCKET_TRACE_KIND */
	__u8 point;
	__u8 l4_proto;
	__u8 flags;
	__u16 port; /* host order */
	__u16 pad;
	__u64 cookie;
	__u64 cgroup_id;
	__be32 address[4];
};
_Static_assert(sizeof(struct socket_trace) == 40, "socket_trace layout");
/* Not in the object's BTF, where the Rust test compares all others: every offset is checked here.
 */
_Static_assert(__builtin_offsetof(struct socket_trace, point) == 1, "socket_trace.point");
_Static_assert(__builtin_offsetof(struct socket_trace, l4_proto) == 2, "socket_trace.l4_proto");
_Static_assert(__builtin_offsetof(struct socket_trace, flags) == 3, "socket_trace.flags");
_Static_assert(__builtin_offsetof(struct socket_trace, port) == 4, "socket_trace.port");
_Static_assert(__builtin_offsetof(struct socket_trace, cookie) == 8, "socket_trace.cookie");
_Static_assert(__builtin_offsetof(struct socket_trace, cgroup_id) == 16, "socket_trace.cgroup_id");
_Static_assert(__builtin_offsetof(struct socket_trace, address) == 24, "socket_trace.address");

#define SOCKET_TRACE_KIND 7
#define SOCKET_TRACE_IPV6 1

enum trace_point {
	TRACE_PRE_FORWARD = 1,
	TRACE_POST_FORWARD = 2,
	TRACE_PRE_REVERSE = 3,
	TRACE_POST_REVERSE = 4,
};

#endif /* EVENT_SOCKET_TRACE_H */
