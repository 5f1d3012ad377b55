/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Debug messages and captures, with numbers, arguments and layouts of Cilium's monitor. Off by
 * default: the verifier removes them. Rust twin: cells/datapath/monitor/events/src/event
 */
#ifndef EVENT_DEBUG_H
#define EVENT_DEBUG_H

#include "packet_event.h"

#define EVENT_DEBUG 2
#define EVENT_CAPTURE 3

struct debug_event {
	__u8 kind;
	__u8 subtype; /* enum debug_message */
	__u16 source; /* endpoint */
	__u32 hash;
	__u32 arguments[3];
};
_Static_assert(sizeof(struct debug_event) == 20, "debug_event layout");
_Static_assert(__builtin_offsetof(struct debug_event, arguments) == 8, "debug_event.arguments");

struct capture_event {
	struct event_header header; /* subtype: enum capture_point */
	__u32 arguments[2];
};
_Static_assert(sizeof(struct capture_event) == 24, "capture_event layout");

/* Numbers and their arguments: addresses and ports as in the packet, the last word of IPv6
 * addresses, unless noted. Pairs are one per address family.
 */
enum debug_message {
	DEBUG_LOCAL_DELIVERY = 2, /* endpoint, identity of the sender */
	DEBUG_ENCAPSULATION = 3,  /* node, host order; identity of the sender */
	DEBUG_POLICY_DENIED = 5,  /* identities: sender, receiver */
	DEBUG_CT_MATCH = 8,	  /* lifetime of the entry, service id */
	DEBUG_ICMP6 = 11,	  /* type */
	DEBUG_SOLICITATION = 13,  /* two words of the address */
	DEBUG_TIME_EXCEEDED = 14,
	DEBUG_CT_VERDICT = 15,	  /* enum ct_result, service id */
	DEBUG_DECAPSULATION = 16, /* tunnel id */
	DEBUG_ERROR = 18,	  /* number of a helper, what it returned */

	DEBUG_FRONTEND6 = 22, /* address, port */
	DEBUG_FRONTEND4 = 30,
	DEBUG_NO_FRONTEND6 = 23, /* two words of the address */
	DEBUG_NO_FRONTEND4 = 31,
	DEBUG_SLOT6 = 24, /* slot, port of the service */
	DEBUG_SLOT4 = 32,
	DEBUG_BACKEND6 = 25, /* address, port */
	DEBUG_BACKEND4 = 33,
	DEBUG_NO_SLOT6 = 26, /* slot, port of the service */
	DEBUG_NO_SLOT4 = 34,
	DEBUG_NO_BACKEND6 = 27, /* id */
	DEBUG_NO_BACKEND4 = 35,
	DEBUG_REVERSE_LOOKUP6 = 28, /* service id */
	DEBUG_REVERSE_LOOKUP4 = 36,
	DEBUG_REVERSE6 = 29, /* address, port */
	DEBUG_REVERSE4 = 37,
	DEBUG_LOOPBACK6 = 67, /* addresses: from, to */
	DEBUG_LOOPBACK4 = 38,
	DEBUG_LOOPBACK_BACK6 = 68,
	DEBUG_LOOPBACK_BACK4 = 39,

	DEBUG_CT_LOOKUP6 = 51, /* addresses: source, destination; ports, host order */
	DEBUG_CT_LOOKUP4 = 48,
	DEBUG_CT_HOW6 = 52, /* protocol and flags of the key; direction, scope */
	DEBUG_CT_HOW4 = 49,
	DEBUG_CT_CREATE6 = 53, /* service id; identity of the sender; address of the service */
	DEBUG_CT_CREATE4 = 50,
	DEBUG_POLICY_L4 = 55,	 /* identities: sender, receiver; port and protocol */
	DEBUG_NO_IDENTITY6 = 57, /* address */
	DEBUG_NO_IDENTITY4 = 56,
	DEBUG_IDENTITY6 = 59, /* address, identity */
	DEBUG_IDENTITY4 = 58,
	DEBUG_STALE_CT = 60,	     /* service ids: of the packet, of the entry */
	DEBUG_INHERIT_IDENTITY = 61, /* identity */
};

/* Numbers and their argument: an interface. */
enum capture_point {
	CAPTURE_DELIVERY = 4,
	CAPTURE_AFTER_NAT46 = 6,
	CAPTURE_AFTER_NAT64 = 7,
	CAPTURE_BEFORE_SNAT = 10,
	CAPTURE_AFTER_SNAT = 11,
};

/* Directions and scopes of lookups in messages. */
#define DEBUG_DIRECTION_SERVICE 2
#define DEBUG_SCOPE_FORWARD 0
#define DEBUG_SCOPE_REVERSE 1
#define DEBUG_SCOPE_BOTH 2

#ifdef __bpf__
/* Debug events are enabled. Their code is not inlined and takes existing variables, so that no
 * register is spilled while they are off.
 */
#define DEBUGS(trace_) (!LIKELY(!options.packet.debug_code) && ((trace_)->events & EVENTS_DEBUG))

static __always_inline void debug_output(CTX *ctx, const struct trace_ctx *trace, __u8 message,
					 __u32 one, __u32 two, __u32 three)
{
	struct debug_event event = {
		.kind = EVENT_DEBUG,
		.subtype = message,
		.source = trace->endpoint,
		.arguments = {one, two, three},
	};

#ifndef PACKET_XDP
	event.hash = bpf_get_hash_recalc(ctx);
#endif
	flow_stop();
	bpf_perf_event_output(ctx, &cilium_events, BPF_F_CURRENT_CPU, &event, sizeof(event));
}

static __noinline void debug_send(CTX *ctx, const struct trace_ctx *trace, __u8 message, __u32 one,
				  __u32 two)
{
	debug_output(ctx, trace, message, one, two, 0);
}

static __noinline void capture_send(CTX *ctx, const struct trace_ctx *trace, __u8 point,
				    __u32 argument)
{
	struct capture_event event = {
		.header = {.kind = EVENT_CAPTURE, .subtype = point, .version = 1},
		.arguments = {argument},
	};

	event_header_fill(ctx, &event.header, trace, 0);
	event_send(ctx, &event.header, sizeof(event));
}

#define DEBUG(ctx_, path_, message_, one_, two_)                                                   \
	do {                                                                                       \
		if (DEBUGS(path_))                                                                 \
			debug_send(ctx_, path_, message_, one_, two_);                             \
	} while (0)

#define CAPTURE(ctx_, path_, point_, argument_)                                                    \
	do {                                                                                       \
		if (DEBUGS(path_))                                                                 \
			capture_send(ctx_, path_, point_, argument_);                              \
	} while (0)
#endif

#endif /* EVENT_DEBUG_H */
