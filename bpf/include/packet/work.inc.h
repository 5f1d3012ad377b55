/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* A packet of one address family. */

/* What a source becomes. */
struct AF_FN(nat_target) {
	AF_ADDRESS(address);
	__u8 needs_ct; /* a flow of this node, which nobody else tracks */
	__u8 pad[3];
};

struct AF_FN(work) {
	struct path path;
	struct way way;
	__u16 length;	      /* of the packet on its way out, if it grows; else 0 */
	__u16 mtu;	      /* of the way out, if it is too large */
	__u8 translated_back; /* an answer, whose destination was translated */
	__u8 names_service;   /* an ICMP error to a client outside, which sent to that */
	struct AF_FN(packet) packet;
	struct AF_FN(packet) inner;		    /* of an ICMP error: what caused it */
	struct AF_FN(fragment_key) message ALIGNED; /* of the first fragment of an echo message */
	struct fragment_ports echo;
	struct endpoint sender;
	struct device device;
	struct tunnel_peer peer;
	/* the service that it asks for */
	struct lb_service service;
	struct AF_JOIN(lb, _service_key) key;
	struct AF_JOIN(lb, _affinity_key) client;
	struct translation translation;
	AF_ADDRESS(chosen); /* backend that the packet outside was for */
	__u8 is_unpacked;   /* there was a packet outside */
	__u8 counted;	    /* COUNTED_...: entries of flows, at XDP */
	__u8 reopens;	    /* asks for a connection, and the entry is of one that was closed */
	__u8 pad;
	/* its flow */
	struct ct_entry fresh;
	struct AF_FN(ct_key) flow ALIGNED;
	struct policy_question question;
	/* its source */
	struct AF_FN(nat_target) target;
	struct AF_FN(nat_key) forward ALIGNED;
	struct AF_FN(nat_key) answers ALIGNED;
	struct AF_FN(nat_key) ended ALIGNED;
	struct AF_FN(nat_entry) entry;
	struct AF_FN(nat_entry) reverse;
};
