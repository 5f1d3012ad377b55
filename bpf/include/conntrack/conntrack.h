/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Connection tracking maps: entries of flows. Rust twin: bpf/maps/src/conntrack.rs */
#ifndef CONNTRACK_CONNTRACK_H
#define CONNTRACK_CONNTRACK_H

#include "../common/af.h"
#include "../common/map.h"

struct ct_entry {
	/* Source address of replies to the client; IPv4 in the last word. Service entries have the
	 * backend id in the last two words instead, as a __u64. See ct_client_port4().
	 */
	__be32 nat_address[4];
	__u64 packets;
	__u64 bytes;
	__u32 lifetime; /* monotonic seconds */
	__u8 flags;
	__u8 flags2;
	__be16 rev_nat_index; /* service id, opaque here */
	__be16 nat_port;      /* of that address; in service entries the allocated source port */
	__u8 tx_flags_seen;   /* TCP flags */
	__u8 rx_flags_seen;
	__u32 source_identity; /* of the side that opened it */
	__u32 last_tx_report;  /* monotonic seconds */
	__u32 last_rx_report;
};
_Static_assert(sizeof(struct ct_entry) == 56, "ct_entry layout");
_Static_assert(__builtin_offsetof(struct ct_entry, lifetime) == 32, "ct_entry.lifetime");
_Static_assert(__builtin_offsetof(struct ct_entry, rev_nat_index) == 38, "ct_entry.rev_nat_index");
_Static_assert(__builtin_offsetof(struct ct_entry, source_identity) == 44,
	       "ct_entry.source_identity");

/* flags of a key */
#define CT_EGRESS 0
#define CT_INGRESS 1
#define CT_RELATED 2 /* or-ed: ICMP errors about flows between the two addresses */
#define CT_SERVICE 4

/* flags of an entry */
#define CT_RX_CLOSING (1 << 0)
#define CT_TX_CLOSING (1 << 1)
#define CT_LOOPBACK (1 << 3)
#define CT_SEEN_NON_SYN (1 << 4)
#define CT_NODE_PORT (1 << 5)
#define CT_PROXY_REDIRECT (1 << 6)
#define CT_DSR (1 << 7)
#define CT_CLOSING (CT_RX_CLOSING | CT_TX_CLOSING)

#define CT2_FROM_TUNNEL (1 << 2)

#define AF 4
#include "conntrack.inc.h"
#undef AF
#define AF 6
#include "conntrack.inc.h"
#undef AF

/* Of service entries. */
static __always_inline __u64 *ct_backend(struct ct_entry *entry)
{
	return (__u64 *)&entry->nat_address[2];
}

#endif /* CONNTRACK_CONNTRACK_H */
