/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* What the functions of a program know of the packet that they handle. It is in memory of the CPU,
 * as the stack of all of them together has 512 bytes; programs at interfaces are not interrupted by
 * each other.
 */
#ifndef PACKET_WORK_H
#define PACKET_WORK_H

#include "../conntrack/conntrack.h"
#include "../endpoint/endpoint.h"
#include "../event/packet_event.h"
#include "../lb/affinity.h"
#include "../lb/service.h"
#include "../nat/nat.h"
#include "../node/options.h"
#include "packet.h"

/* What a packet asks of a policy. */
struct policy_question {
	__u32 endpoint; /* whose policy */
	__u32 identity; /* of the other side */
	__be16 port;	/* destination; of ICMP the type */
	__u8 proto;
	__u8 direction; /* POLICY_INGRESS or POLICY_EGRESS */
	__u8 open;	/* everything is allowed */
	/* answer */
	__u8 match; /* enum verdict_match */
	__u8 auth;
	__u8 pad;
	__u32 cookie;
};

/* What the entry of a translated flow remembers. */
struct translation {
	__be32 address[4]; /* asked for, if it is another node's; as in struct ct_entry */
	__be16 port;
	__be16 rev_nat_index; /* 0: not translated */
	__u8 loopback;	      /* the sender may be the backend; afterwards: it is */
	__u8 anew;	      /* a connection that goes on, of which no entry knows the backend */
	__be16 sport;	      /* of the client, if the packet goes on from another port; else 0 */
};

/* The way out of a packet. */
struct way {
	__u32 ifindex;
	struct ethernet link; /* header there */
};

#define AF 4
#include "work.inc.h"
#undef AF
#define AF 6
#include "work.inc.h"
#undef AF

/* A packet has one address family. */
union work {
	struct work4 v4;
	struct work6 v6;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, union work);
} packet_work SEC(".maps");

static __always_inline union work *this_work(void)
{
	__u32 index = 0;

	return bpf_map_lookup_elem(&packet_work, &index);
}

/* The work that a caller has handed over. Linux before 6.2 takes no memory of a caller as key or
 * value of a map, so the function gets it from the map itself.
 */
#define OWN_WORK(work)                                                                             \
	(options.packet.has_mem_keys ? (work) : (__typeof__(work))(void *)this_work())

#endif /* PACKET_WORK_H */
