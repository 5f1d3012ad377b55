/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Per-CPU scratch memory of the current packet: all stack frames together have 512 bytes. Programs
 * at interfaces do not interrupt each other.
 */
#ifndef PACKET_SCRATCH_H
#define PACKET_SCRATCH_H

#include "../conntrack/conntrack.h"
#include "../endpoint/endpoint.h"
#include "../event/packet_event.h"
#include "../lb/affinity.h"
#include "../lb/service.h"
#include "../nat/nat.h"
#include "../node/options.h"
#include "packet.h"

/* Parameters and result of a policy lookup. */
struct policy_lookup {
	__u32 endpoint; /* endpoint of the policy */
	__u32 identity; /* remote identity */
	__be16 port;	/* destination; of ICMP the type */
	__u8 proto;
	__u8 direction; /* POLICY_INGRESS or POLICY_EGRESS */
	__u8 open;	/* everything is allowed */
	/* answer */
	__u8 match; /* enum verdict_match */
	__u8 auth;
	__u8 audit; /* in: denied packets pass; out: this one did (AUDITED) */
	__u32 cookie;
	__be16 proxy_port; /* 0: no redirection */
};

#define AUDITED 2

/* Translation state of a flow, for its conntrack entry. */
struct translation {
	__be32 address[4]; /* original destination, if it is another node's; as in struct ct_entry
			    */
	__be16 port;
	__be16 rev_nat_index; /* 0: not translated */
	__u8 loopback;	      /* in: the sender may be the backend; out: it is */
	__u8 anew;	      /* an open connection whose backend was selected anew */
	__be16 sport;	      /* original source port, if translated; else 0 */
};

/* Next hop of a packet. */
struct next_hop {
	__u32 ifindex;
	struct ethernet link; /* header there */
};

#define AF 4
#include "scratch.inc.h"
#undef AF
#define AF 6
#include "scratch.inc.h"
#undef AF

/* A packet has one address family. */
union scratch {
	struct scratch4 v4;
	struct scratch6 v6;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, union scratch);
} packet_scratch SEC(".maps");

static __always_inline union scratch *this_scratch(void)
{
	__u32 index = 0;

	return bpf_map_lookup_elem(&packet_scratch, &index);
}

/* Scratch memory in a global function. Linux before 6.2 accepts no memory of an argument as key or
 * value of a map, so the function looks it up again.
 */
#define OWN_SCRATCH(scratch)                                                                       \
	(options.packet.has_mem_keys ? (scratch) : (__typeof__(scratch))(void *)this_scratch())

#endif /* PACKET_SCRATCH_H */
