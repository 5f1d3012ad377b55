/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Conntrack state machine. Pure: compiles for the host, with unit tests in bpf/programs/tests/host.
 */
#ifndef CONNTRACK_STATE_H
#define CONNTRACK_STATE_H

#include <linux/in.h>

#include "../node/options.h"
#include "conntrack.h"

#ifndef TCP_SYN
#define TCP_FIN 1
#define TCP_SYN 2
#define TCP_RST 4
#define TCP_ACK 16
#endif

enum ct_result {
	CT_RESULT_NEW = 0,
	CT_RESULT_ESTABLISHED = 1,
	CT_RESULT_REPLY = 2,
	CT_RESULT_RELATED = 3,
};

/* The connection is closed by both sides, or reset. */
static __always_inline int ct_is_closed(const struct ct_entry *entry)
{
	return (entry->flags & CT_CLOSING) == CT_CLOSING;
}

static __always_inline int ct_is_expired(const struct ct_entry *entry, __u32 now)
{
	return entry->lifetime < now;
}

/* Asks for a connection. */
static __always_inline int tcp_opens(__u8 tcp_flags)
{
	return (tcp_flags & (TCP_SYN | TCP_ACK)) == TCP_SYN;
}

static __always_inline __u32 ct_timeout(const struct packet_options *limits, __u8 proto,
					__u8 direction, int seen_non_syn)
{
	if (proto != IPPROTO_TCP)
		return direction == CT_SERVICE ? limits->ct_service_any : limits->ct_any;
	if (!seen_non_syn)
		return limits->ct_tcp_syn;
	return direction == CT_SERVICE ? limits->ct_service_tcp : limits->ct_tcp;
}

/* Updates the entry of an open connection. Returns 1 to report the packet. */
static __always_inline int ct_refresh(struct ct_entry *entry, const struct packet_options *limits,
				      __u8 proto, __u8 direction, __u8 tcp_flags, __u32 now)
{
	__u8 reported = tcp_flags & limits->ct_report_flags;
	__u8 *seen = direction == CT_INGRESS ? &entry->rx_flags_seen : &entry->tx_flags_seen;
	__u32 *last = direction == CT_INGRESS ? &entry->last_rx_report : &entry->last_tx_report;
	__u32 lifetime;

	if (proto == IPPROTO_TCP && !(tcp_flags & TCP_SYN) && !(entry->flags & CT_SEEN_NON_SYN))
		entry->flags |= CT_SEEN_NON_SYN;
	lifetime = now + ct_timeout(limits, proto, direction, entry->flags & CT_SEEN_NON_SYN);
	/* Only changed fields are written: other CPUs read this memory. */
	if (entry->lifetime != lifetime)
		entry->lifetime = lifetime;
	if (*last + limits->ct_report_interval >= now && (*seen & reported) == reported)
		return 0;
	*seen |= reported;
	*last = now;
	return 1;
}

/* Updates the entry of a flow. Returns 1 to report the packet. */
static __always_inline int ct_update(struct ct_entry *entry, const struct packet_options *limits,
				     __u8 proto, __u8 direction, __u8 tcp_flags, __u32 now)
{
	int report = 1;

	if (!ct_is_closed(entry))
		report = ct_refresh(entry, limits, proto, direction, tcp_flags, now);
	if (proto != IPPROTO_TCP || !(tcp_flags & (TCP_FIN | TCP_RST)))
		return report;
	if ((tcp_flags & TCP_RST) || direction == CT_SERVICE)
		entry->flags |= CT_CLOSING;
	else
		entry->flags |= direction == CT_INGRESS ? CT_RX_CLOSING : CT_TX_CLOSING;
	if (ct_is_closed(entry))
		entry->lifetime = now + limits->ct_tcp_fin;
	return report;
}

/* Reopens a closed connection. */
static __always_inline void ct_reopen(struct ct_entry *entry)
{
	entry->flags &= ~(CT_CLOSING | CT_SEEN_NON_SYN);
	entry->tx_flags_seen = 0;
	entry->rx_flags_seen = 0;
}

/* Initializes a new entry. TCP starts as if this packet were a SYN. */
static __always_inline void ct_begin(struct ct_entry *entry, const struct packet_options *limits,
				     __u8 proto, __u8 direction, __u32 now)
{
	__u8 seen = proto == IPPROTO_TCP ? TCP_SYN & limits->ct_report_flags : 0;

	entry->lifetime = now + ct_timeout(limits, proto, direction, 0);
	if (direction == CT_INGRESS) {
		entry->rx_flags_seen = seen;
		entry->last_rx_report = now;
	} else {
		entry->tx_flags_seen = seen;
		entry->last_tx_report = now;
	}
}

#endif /* CONNTRACK_STATE_H */
