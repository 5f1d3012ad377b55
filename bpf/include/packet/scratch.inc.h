/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* A packet of one address family. */

/* SNAT target. */
struct AF_FN(nat_target) {
	AF_ADDRESS(address);
	__u8 needs_ct; /* flow of the node itself, not tracked elsewhere */
	__u8 pad[3];
};

struct AF_FN(scratch) {
	struct trace_ctx trace;
	struct next_hop next_hop;
	__u16 length;		 /* L3 length after growth; else 0 */
	__u16 mtu;		 /* MTU of the route, if exceeded */
	__u8 reverse_translated; /* a reply was reverse-translated */
	__u8 is_about_service;	 /* an ICMP error about a service flow */
	packet_t packet;
	packet_t inner;			/* quoted packet of an ICMP error */
	fragment_key_t message ALIGNED; /* of the first fragment of an echo message */
	struct fragment_ports echo;
	struct endpoint sender;
	struct device device;
	struct tunnel_peer peer;
	/* service */
	struct lb_service service;
	lb_service_key_t key;
	lb_affinity_key_t client;
	struct translation translation;
	AF_ADDRESS(chosen);   /* selected backend of the outer header */
	__u8 is_decapsulated; /* the packet was encapsulated */
	__u8 counted;	      /* COUNTED_...: entries that counted the packet, at XDP */
	__u8 is_reopened;     /* SYN with the entry of a closed connection */
	__u8 pad;
	/* conntrack */
	struct ct_entry fresh;
	ct_key_t flow ALIGNED;
	struct policy_lookup lookup;
	/* SNAT */
	nat_target_t target;
	nat_key_t forward ALIGNED;
	nat_key_t reverse_key ALIGNED;
	nat_key_t ended ALIGNED;
	nat_entry_t entry;
	nat_entry_t reverse;
};
