/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* What packets do to the entries of their flows. */
#include "conntrack/state.h"

#include "check.h"

static const struct packet_options limits = {
	.ct_tcp = 8000,
	.ct_any = 60,
	.ct_service_tcp = 7000,
	.ct_service_any = 50,
	.ct_tcp_syn = 61,
	.ct_tcp_fin = 10,
	.ct_report_interval = 5,
	.ct_report_flags = TCP_SYN | TCP_FIN | TCP_RST,
};

static struct ct_entry begun(__u8 proto, __u8 direction, __u32 now)
{
	struct ct_entry entry = {};

	ct_begin(&entry, &limits, proto, direction, now);
	return entry;
}

static void begins_as_if_a_syn_was_seen(void)
{
	struct ct_entry out = begun(IPPROTO_TCP, CT_EGRESS, 100);
	struct ct_entry in = begun(IPPROTO_TCP, CT_INGRESS, 100);
	struct ct_entry udp = begun(IPPROTO_UDP, CT_EGRESS, 100);
	struct ct_entry service = begun(IPPROTO_UDP, CT_SERVICE, 100);

	CHECK(out.lifetime == 161 && out.tx_flags_seen == TCP_SYN && out.last_tx_report == 100);
	CHECK(!out.rx_flags_seen && !out.last_rx_report);
	CHECK(in.rx_flags_seen == TCP_SYN && in.last_rx_report == 100 && !in.tx_flags_seen);
	CHECK(udp.lifetime == 160 && !udp.tx_flags_seen);
	CHECK(service.lifetime == 150);
}

static void lives_long_once_it_is_established(void)
{
	struct ct_entry entry = begun(IPPROTO_TCP, CT_EGRESS, 100);
	struct ct_entry service = begun(IPPROTO_TCP, CT_SERVICE, 100);

	/* The answer to a SYN is one, too. */
	ct_update(&entry, &limits, IPPROTO_TCP, CT_INGRESS, TCP_SYN | TCP_ACK, 101);
	CHECK(entry.lifetime == 162 && !(entry.flags & CT_SEEN_NON_SYN));
	ct_update(&entry, &limits, IPPROTO_TCP, CT_EGRESS, TCP_ACK, 102);
	CHECK(entry.lifetime == 8102 && (entry.flags & CT_SEEN_NON_SYN));
	ct_update(&service, &limits, IPPROTO_TCP, CT_SERVICE, TCP_ACK, 102);
	CHECK(service.lifetime == 7102);
}

static void reports_new_flags_and_after_the_interval(void)
{
	struct ct_entry entry = begun(IPPROTO_TCP, CT_EGRESS, 100);

	CHECK(!ct_update(&entry, &limits, IPPROTO_TCP, CT_EGRESS, TCP_ACK, 105));
	CHECK(ct_update(&entry, &limits, IPPROTO_TCP, CT_EGRESS, TCP_ACK, 106));
	CHECK(entry.last_tx_report == 106);
	CHECK(!ct_update(&entry, &limits, IPPROTO_TCP, CT_EGRESS, TCP_ACK, 107));
	/* The other direction has its own. */
	CHECK(ct_update(&entry, &limits, IPPROTO_TCP, CT_INGRESS, TCP_ACK, 107));
	CHECK(ct_update(&entry, &limits, IPPROTO_TCP, CT_EGRESS, TCP_FIN | TCP_ACK, 108));
	CHECK(entry.tx_flags_seen == (TCP_SYN | TCP_FIN));
}

static void ends_soon_after_both_sides_closed(void)
{
	struct ct_entry entry = begun(IPPROTO_TCP, CT_EGRESS, 100);

	ct_update(&entry, &limits, IPPROTO_TCP, CT_EGRESS, TCP_FIN | TCP_ACK, 101);
	CHECK((entry.flags & CT_CLOSING) == CT_TX_CLOSING && entry.lifetime == 8101);
	ct_update(&entry, &limits, IPPROTO_TCP, CT_INGRESS, TCP_FIN | TCP_ACK, 102);
	CHECK(ct_is_closed(&entry) && entry.lifetime == 112);
	/* What comes late is reported and prolongs nothing. */
	CHECK(ct_update(&entry, &limits, IPPROTO_TCP, CT_EGRESS, TCP_ACK, 105));
	CHECK(entry.lifetime == 112);
	CHECK(!ct_is_expired(&entry, 112) && ct_is_expired(&entry, 113));
}

static void ends_at_once_by_reset_and_of_services(void)
{
	struct ct_entry reset = begun(IPPROTO_TCP, CT_EGRESS, 100);
	struct ct_entry service = begun(IPPROTO_TCP, CT_SERVICE, 100);
	struct ct_entry udp = begun(IPPROTO_UDP, CT_EGRESS, 100);

	ct_update(&reset, &limits, IPPROTO_TCP, CT_INGRESS, TCP_RST, 101);
	CHECK(ct_is_closed(&reset) && reset.lifetime == 111);
	ct_update(&service, &limits, IPPROTO_TCP, CT_SERVICE, TCP_FIN | TCP_ACK, 101);
	CHECK(ct_is_closed(&service));
	/* Where there are no flags, nothing closes. */
	ct_update(&udp, &limits, IPPROTO_UDP, CT_EGRESS, TCP_RST, 101);
	CHECK(!(udp.flags & CT_CLOSING) && udp.lifetime == 161);
}

static void opens_again(void)
{
	struct ct_entry entry = begun(IPPROTO_TCP, CT_SERVICE, 100);

	ct_update(&entry, &limits, IPPROTO_TCP, CT_SERVICE, TCP_RST, 101);
	ct_reopen(&entry);
	CHECK(!(entry.flags & (CT_CLOSING | CT_SEEN_NON_SYN)) && !entry.tx_flags_seen);
	CHECK(tcp_opens(TCP_SYN) && !tcp_opens(TCP_SYN | TCP_ACK) && !tcp_opens(TCP_ACK));
}

int main(void)
{
	begins_as_if_a_syn_was_seen();
	lives_long_once_it_is_established();
	reports_new_flags_and_after_the_interval();
	ends_soon_after_both_sides_closed();
	ends_at_once_by_reset_and_of_services();
	opens_again();
	return failures;
}
