/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Notes about the current packet, for an entry of the flow table: what programs decide and count
 * on their way through all maps.
 */
#ifndef FLOW_NOTE_H
#define FLOW_NOTE_H

#include "../node/options.h"
#include "flow.h"

/* What becomes of the notes. */
enum flow_plan {
	FLOW_NOTHING = 0,
	FLOW_RECORD = 1,
	FLOW_WATCH = 2,	  /* of a packet that may begin or end a connection */
	FLOW_REMOVE = 3,  /* the packet has changed entries of both directions */
	FLOW_STRANGE = 4, /* of TCP or UDP, but not plain: without a key */
};

/* Of one CPU: programs at interfaces do not interrupt each other. */
struct flow_note {
	__u8 plan;
	__u8 ipv6;
	__u8 hop_limit;
	__u8 has_mtu;	   /* a route was looked up by length */
	__u16 length;	   /* L3 length, of a segment */
	__u8 untranslated; /* a program may make its NAT entry later */
	__u8 pad;
	__u32 size; /* of the frame */
	__u8 macs[12];
	union {
		struct flow_key4 v4;
		struct flow_key6 v6;
	} key;
	union {
		struct flow both; /* first member */
		struct flow4 v4;
		struct flow6 v6;
	} entry;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct flow_note);
} flow_notes SEC(".maps");

/* Index of the notes: not on the stacks of callers, and no call deeper. */
const volatile __u32 flow_index = 0;

static __always_inline struct flow_note *this_flow_note(void)
{
	return bpf_map_lookup_elem(&flow_notes, (const void *)&flow_index);
}

/* The notes, if the packet is to be recorded. */
static __always_inline struct flow_note *flow_recording(void)
{
	struct flow_note *note;

	if (!options.packet.flows)
		return NULL;
	note = this_flow_note();
	return note && note->plan == FLOW_RECORD ? note : NULL;
}

/* The next packet of the flow may go another way. */
static __always_inline void flow_stop(void)
{
	struct flow_note *note = flow_recording();

	if (note)
		note->plan = FLOW_NOTHING;
}

static __always_inline void flow_tally(__u32 counter)
{
	__u64 *count = bpf_map_lookup_elem(&skep_flow_stats, &counter);

	if (count)
		(*count)++;
}

/* An entry of another flow has changed: no recorded flow is valid any more. */
static __noinline void flow_raise_epoch(void)
{
	struct flow_epoch *current;
	__u32 index = 0;

	if (!options.packet.flows)
		return;
	current = bpf_map_lookup_elem(&skep_epoch, &index);
	if (current)
		__sync_fetch_and_add(&current->epoch, 1);
	flow_tally(FLOW_RAISED);
	flow_stop();
}

/* The packet begins or ends a connection: its replies may go another way. */
static __always_inline void flow_note_change(void)
{
	struct flow_note *note;

	if (!options.packet.flows)
		return;
	note = this_flow_note();
	if (!note || !note->plan)
		return;
	if (note->plan == FLOW_STRANGE)
		flow_raise_epoch();
	else
		note->plan = FLOW_REMOVE;
}

/* The packet was counted. */
static __always_inline void flow_note_counter(__u8 reason, __u8 direction, __u16 line, __u8 file)
{
	struct flow_note *note = flow_recording();
	struct metrics_key *key;
	__u32 n;

	if (!note)
		return;
	n = note->entry.both.counters;
	if (n >= FLOW_COUNTERS) {
		note->plan = FLOW_NOTHING;
		return;
	}
	key = &note->entry.both.counted[n];
	key->reason = reason;
	key->direction = direction;
	key->line = line;
	key->file = file;
	note->entry.both.counters = n + 1;
}

/* A policy entry counted the packet. */
static __always_inline void flow_note_policy(const struct policy_stats_key *counted)
{
	struct flow_note *note = flow_recording();
	__u32 n;

	if (!note)
		return;
	n = note->entry.both.policies;
	if (n >= FLOW_POLICIES) {
		note->plan = FLOW_NOTHING;
		return;
	}
	note->entry.both.allowed[n] = *counted;
	note->entry.both.policies = n + 1;
}

/* The packet leaves by this interface. */
static __always_inline struct flow *flow_note_exit(enum flow_exit exit, __u32 ifindex)
{
	struct flow_note *note;

	if (!options.packet.flows)
		return NULL;
	note = this_flow_note();
	if (!note || !note->plan)
		return NULL;
	note->entry.both.exit = exit;
	note->entry.both.ifindex = ifindex;
	return &note->entry.both;
}

/* There is no NAT entry for the packet yet. */
static __always_inline void flow_note_untranslated(void)
{
	struct flow_note *note = flow_recording();

	if (note)
		note->untranslated = 1;
}

/* A route was looked up: shorter packets have the same one. */
static __always_inline void flow_note_mtu(void)
{
	struct flow_note *note = flow_recording();

	if (note)
		note->has_mtu = 1;
}

#endif /* FLOW_NOTE_H */
