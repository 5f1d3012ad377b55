/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Events of packets: trace, drop, policy verdict. Their layouts are those of Cilium's monitor. Rust
 * twin: cells/datapath/monitor/events/src/event
 */
#ifndef EVENT_PACKET_EVENT_H
#define EVENT_PACKET_EVENT_H

#include "../common/compiler.h"
#include "../common/drop.h"
#include "events.h"
#include "signal.h"

#define EVENT_DROP 1
#define EVENT_TRACE 4
#define EVENT_VERDICT 5

struct event_header {
	__u8 kind;
	__u8 subtype; /* drop reason, or trace point */
	__u16 source; /* endpoint */
	__u32 hash;
	__u32 length;
	__u16 captured;
	__u8 version;
	__u8 extension;
};
_Static_assert(sizeof(struct event_header) == 16, "event_header layout");

struct drop_event {
	struct event_header header;
	__u32 source_identity;
	__u32 destination_identity;
	__u32 destination; /* endpoint, 0 on egress */
	__u16 line;
	__u8 file;
	__s8 extended_error;
	__u32 ifindex;
	__u8 flags;
	__u8 pad[3];
	__u64 trace_id;
};
_Static_assert(sizeof(struct drop_event) == 48, "drop_event layout");

struct trace_event {
	struct event_header header;
	__u32 source_identity;
	__u32 destination_identity;
	__u16 destination; /* endpoint, or proxy port */
	__u8 reason;
	__u8 flags;
	__u32 ifindex;
	__be32 original_source[4]; /* IPv4 in the first word */
	__u64 trace_id;
};
_Static_assert(sizeof(struct trace_event) == 56, "trace_event layout");

struct verdict_event {
	struct event_header header;
	__u32 remote_identity;
	__s32 verdict; /* 0 allowed, less: drop reason, more: proxy port in network order */
	__u16 port;    /* destination, host order */
	__u8 proto;
	__u8 flags;
	__u8 auth;
	__u8 pad[3];
	__u32 cookie;
	__u32 pad2;
};
_Static_assert(sizeof(struct verdict_event) == 40, "verdict_event layout");

/* flags of drops and traces */
#define EVENT_IPV6 (1 << 0)
#define EVENT_L3 (1 << 1)    /* it begins with its IP header */
#define EVENT_VXLAN (1 << 2) /* an encapsulated packet */

/* flags of verdicts: bits 0-1 direction, bits 3-5 match type */
#define VERDICT_INGRESS 1
#define VERDICT_EGRESS 2
#define VERDICT_IPV6 (1 << 2)
#define VERDICT_MATCH_SHIFT 3
#define VERDICT_AUDITED (1 << 6)

enum verdict_match {
	MATCH_NONE = 0,
	MATCH_L3 = 1,
	MATCH_L3_L4 = 2,
	MATCH_L4 = 3,
	MATCH_ALL = 4,
	MATCH_L3_PROTO = 5,
	MATCH_PROTO = 6,
};

/* Events of an endpoint, or of the node; of an endpoint 0: those of the node. Rust twin: `events`
 * in bpf/maps/src/endpoint.rs
 */
#define EVENTS_DROPS (1 << 0)
#define EVENTS_TRACES (1 << 1)
#define EVENTS_DEBUG (1 << 2)
#define EVENTS_LEVEL_SHIFT 3 /* aggregation of traces: 0 none ... 4 most */
#define EVENTS_LEVEL (7 << EVENTS_LEVEL_SHIFT)
#define EVENTS_VERDICTS (1 << 6)
#define EVENTS_SET (1 << 7)

enum trace_point_packet {
	TRACE_TO_ENDPOINT = 0,
	TRACE_TO_PROXY = 1,
	TRACE_TO_HOST = 2,
	TRACE_TO_STACK = 3,
	TRACE_TO_OVERLAY = 4,
	TRACE_FROM_ENDPOINT = 5,
	TRACE_FROM_PROXY = 6,
	TRACE_FROM_HOST = 7,
	TRACE_FROM_OVERLAY = 9,
	TRACE_FROM_NETWORK = 10,
	TRACE_TO_NETWORK = 11,
};

/* Reasons of traces; the first four are results of connection tracking. */
#define TRACE_REASON_UNKNOWN 5

#ifdef __bpf__
#include <linux/pkt_cls.h>

#include "../endpoint/endpoint.h"
#include "../flow/note.h"
#include "../node/clock.h"
#include "../node/options.h"
#include "../packet/context.h"
#include "metrics.h"
#include "ratelimit.h"

/* Trace context of a packet, for events. */
struct trace_ctx {
	__u32 now; /* on the clock of maps */
	__u32 source_identity;
	__u32 destination_identity;
	__u16 endpoint;	   /* that events are of */
	__u16 destination; /* endpoint that receives it */
	__u16 line;
	__u8 file;
	__u8 direction; /* METRIC_INGRESS or METRIC_EGRESS */
	__s8 extended_error;
	__u8 ipv6;
	__u8 reason;	  /* result of connection tracking */
	__u8 report;	  /* report the flow now */
	__u8 begins_echo; /* first fragment of an echo message */
	__u8 events;	  /* EVENTS_* */
	__u8 pad[2];
};

/* Initializes the trace context. */
static __always_inline void trace_begin(struct trace_ctx *trace, __u16 endpoint, __u32 identity,
					__u8 direction, __u8 file)
{
	__builtin_memset(trace, 0, sizeof(*trace));
	trace->now = clock_now();
	trace->endpoint = endpoint;
	trace->source_identity = identity;
	trace->direction = direction;
	trace->file = file;
	trace->reason = TRACE_REASON_UNKNOWN;
	trace->events = options.packet.events;
}

/* Events are those of an endpoint. */
static __always_inline void trace_as(struct trace_ctx *trace, __u8 events)
{
	trace->events = events ? events : options.packet.events;
}

static __always_inline int events_allowed(void)
{
	return !options.packet.events_rate ||
	       ratelimit_take_rate(RATELIMIT_EVENTS, 0, options.packet.events_rate,
				   options.packet.events_burst);
}

/* Fills in the common header of events with a packet. */
static __always_inline void event_header_fill(CTX *ctx, struct event_header *header,
					      const struct trace_ctx *trace, __u8 flags)
{
	__u32 captured = flags & EVENT_VXLAN ? options.packet.trace_length_overlay
					     : options.packet.trace_length;

	if (captured > packet_length(ctx))
		captured = packet_length(ctx);
	header->source = trace->endpoint;
#ifndef PACKET_XDP
	header->hash = bpf_get_hash_recalc(ctx);
#endif
	header->length = packet_length(ctx);
	header->captured = captured;
}

static __always_inline void event_send(CTX *ctx, const struct event_header *header, __u64 size)
{
	bpf_perf_event_output(ctx, &cilium_events,
			      (__u64)header->captured << 32 | BPF_F_CURRENT_CPU, (void *)header,
			      size);
}

static __always_inline void signal_send(CTX *ctx, __u32 kind, __u32 ipv6)
{
	struct signal signal = {.kind = kind, .ipv6 = ipv6};

	bpf_perf_event_output(ctx, &cilium_signals, BPF_F_CURRENT_CPU, &signal, sizeof(signal));
}

/* At devices of the node, tunnel packets have outer headers, and L3 devices have no link header. */
static __always_inline __u8 event_flags(CTX *ctx, const struct trace_ctx *trace)
{
	__u32 ifindex = packet_interface(ctx), l3 = sizeof(struct ethernet);
	__u8 flags = trace->ipv6 ? EVENT_IPV6 : 0;
	const struct device *device;
	__u8 start[10] = {}; /* of the IP header */
	__be16 port;

	if (trace->file != METRIC_FILE_HOST)
		return flags;
	device = bpf_map_lookup_elem(&skep_devices, &ifindex);
	if (device && (device->flags & DEVICE_L3)) {
		l3 = 0;
		flags = EVENT_L3;
	}
	if (packet_load(ctx, l3, start, sizeof(start)))
		return flags;
	if (!l3 && start[0] >> 4 == 6)
		flags |= EVENT_IPV6;
	if (!options.packet.tunnel)
		return flags;
	if (flags & EVENT_IPV6) {
		if (start[6] != IPPROTO_UDP ||
		    packet_load(ctx, l3 + sizeof(struct ip6) + 2, &port, sizeof(port)))
			return flags;
	} else if (start[0] != 0x45 || start[9] != IPPROTO_UDP ||
		   packet_load(ctx, l3 + sizeof(struct ip4) + 2, &port, sizeof(port))) {
		return flags;
	}
	return port == bpf_htons(options.packet.tunnel_port) ? flags | EVENT_VXLAN : flags;
}

/* Counts a drop and sends an event. */
static __noinline int drop_packet(CTX *ctx, const struct trace_ctx *trace, __u8 reason)
{
	struct drop_event event = {
		.header = {.kind = EVENT_DROP, .subtype = reason, .version = 3},
		.source_identity = trace->source_identity,
		.destination_identity = trace->destination_identity,
		.destination = trace->destination,
		.line = trace->line,
		.file = trace->file,
		.extended_error = trace->extended_error,
		.ifindex = packet_interface(ctx),
	};

	count_bytes(reason, trace->direction, trace->line, trace->file, packet_length(ctx));
	if (reason == DROP_CT_CREATE)
		signal_send(ctx, SIGNAL_CT_FULL, trace->ipv6);
	if ((trace->events & EVENTS_DROPS) && events_allowed()) {
		event.flags = event_flags(ctx, trace);
		event_header_fill(ctx, &event.header, trace, event.flags);
		event_send(ctx, &event.header, sizeof(event));
	}
	return DROPPED;
}

/* Arriving packets are traced. */
static __always_inline int traces_arrivals(const struct trace_ctx *trace)
{
	return (trace->events & (EVENTS_TRACES | EVENTS_LEVEL)) == EVENTS_TRACES;
}

/* Trace points before a decision only without aggregation, others if the flow is reported. */
static __always_inline int trace_allowed(const struct trace_ctx *trace, __u8 point)
{
	if (point == TRACE_FROM_ENDPOINT || point == TRACE_FROM_PROXY || point == TRACE_FROM_HOST ||
	    point == TRACE_FROM_OVERLAY || point == TRACE_FROM_NETWORK)
		return traces_arrivals(trace);
	return (trace->events & EVENTS_LEVEL) < 3 << EVENTS_LEVEL_SHIFT || trace->report;
}

static __noinline void trace_send(CTX *ctx, const struct trace_ctx *trace, __u8 point,
				  __u32 ifindex, const __be32 *original_source)
{
	struct trace_event event = {
		.header = {.kind = EVENT_TRACE, .subtype = point, .version = 2},
		.source_identity = trace->source_identity,
		.destination_identity = trace->destination_identity,
		.destination = trace->destination,
		.reason = trace->reason,
		.ifindex = ifindex,
	};

	if (!(trace->events & EVENTS_TRACES))
		return;
	/* The next packet is traced as well. */
	if ((trace->events & EVENTS_LEVEL) < 3 << EVENTS_LEVEL_SHIFT)
		flow_stop();
	if (!events_allowed())
		return;
	if (original_source)
		__builtin_memcpy(event.original_source, original_source, 16);
	event.flags = event_flags(ctx, trace);
	event_header_fill(ctx, &event.header, trace, event.flags);
	event_send(ctx, &event.header, sizeof(event));
}

static __always_inline void trace_packet(CTX *ctx, const struct trace_ctx *trace, __u8 point,
					 __u32 ifindex, const __be32 *original_source)
{
	if (trace_allowed(trace, point))
		trace_send(ctx, trace, point, ifindex, original_source);
}

/* Returns a drop reason, and records the line. */
#define FAIL(path_, reason_) ((path_)->line = __LINE__, -(reason_))

static __noinline void count_packet(CTX *ctx, __u8 reason, __u8 direction, __u16 line, __u8 file)
{
	count_bytes(reason, direction, line, file, packet_length(ctx));
	flow_note_counter(reason, direction, line, file);
}

#define COUNT_PACKET(skb_, reason_, direction_, file_)                                             \
	count_packet(skb_, reason_, direction_, __LINE__, file_)
#endif

#endif /* EVENT_PACKET_EVENT_H */
