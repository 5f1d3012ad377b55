/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Looks up and creates conntrack entries. */
#ifndef CONNTRACK_TRACK_H
#define CONNTRACK_TRACK_H

#include "../event/debug.h"
#include "../event/packet_event.h"
#include "../node/clock.h"
#include "../packet/scratch.h"
#include "state.h"

/* As ct_update(), with the limits of this node. */
static __always_inline int ct_touch(struct ct_entry *entry, __u8 proto, __u8 direction,
				    __u8 tcp_flags, __u32 now)
{
	/* Each packet of a closing connection is reported. */
	if (tcp_flags & (TCP_SYN | TCP_FIN | TCP_RST))
		flow_note_change();
	else if (entry->flags & CT_CLOSING)
		flow_stop();
	return ct_update(entry, packet_options(), proto, direction, tcp_flags, now);
}

/* As ct_begin(), with the limits of this node, and counts the packet. */
static __always_inline void ct_start(CTX *ctx, struct ct_entry *entry, __u8 proto, __u8 direction,
				     __u32 now)
{
	flow_note_change();
	ct_begin(entry, packet_options(), proto, direction, now);
	if (options.packet.ct_accounting) {
		entry->packets = 1;
		entry->bytes = packet_length(ctx);
	}
}

/* Counts another packet. CPUs share the entry. */
static __always_inline void ct_count(CTX *ctx, struct ct_entry *entry)
{
	if (LIKELY(!options.packet.ct_accounting))
		return;
	flow_stop();
	__sync_fetch_and_add(&entry->packets, 1);
	__sync_fetch_and_add(&entry->bytes, packet_length(ctx));
}

/* Reverts ct_count(): another program counts the packet. */
static __always_inline void ct_uncount(CTX *ctx, struct ct_entry *entry)
{
	__sync_fetch_and_add(&entry->packets, -1ULL);
	__sync_fetch_and_add(&entry->bytes, -(__u64)packet_length(ctx));
}

/* Order of lookups. */
enum ct_scope {
	CT_REVERSE_FIRST, /* as a reply, then as a request */
	CT_FORWARD_FIRST, /* as a request first: it most probably exists */
	CT_FORWARD,	  /* as a request only */
};

#define AF 4
#include "track.inc.h"
#undef AF
#define AF 6
#include "track.inc.h"
#undef AF

#endif /* CONNTRACK_TRACK_H */
