/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Policy maps of endpoints. Rust twin: bpf/maps/src/policy.rs */
#ifndef ENDPOINT_POLICY_H
#define ENDPOINT_POLICY_H

#include "../common/map.h"

struct policy_key {
	__u32 prefixlen; /* counts identity and direction, 40 bits, before the protocol */
	__u32 identity;	 /* of the other side, 0 = any */
	__u8 direction;	 /* bit 0: egress */
	__u8 proto;
	__be16 port; /* destination; of ICMP the type */
};
_Static_assert(sizeof(struct policy_key) == 12, "policy_key layout");

struct policy_entry {
	__be16 proxy_port; /* 0 = no redirection */
	__u8 flags;	   /* bit 0 deny, bits 3-7 length of protocol and port prefix */
	__u8 auth;	   /* bits 0-6 type, bit 7 explicit */
	__u32 precedence;
	__u32 cookie;
};
_Static_assert(sizeof(struct policy_entry) == 12, "policy_entry layout");

#define POLICY_STATIC_BITS 40
#define POLICY_FULL_BITS 64
#define POLICY_DENY 1
#define POLICY_MAX_PRECEDENCE 0xffffffffU

#define POLICY_INGRESS 0
#define POLICY_EGRESS 1

struct policy_stats_key {
	__u16 endpoint;
	__u8 pad;
	__u8 prefix_len; /* of protocol and port: 0 to 24 */
	__u32 identity;
	__u8 direction; /* bit 0: egress */
	__u8 proto;
	__be16 port;
};
_Static_assert(sizeof(struct policy_stats_key) == 12, "policy_stats_key layout");

struct policy_stats {
	__u64 packets;
	__u64 bytes;
};

MAP(cilium_policystats, BPF_MAP_TYPE_LRU_PERCPU_HASH, struct policy_stats_key, struct policy_stats);

/* Endpoint id to its policy map, pinned as cilium_policy_v2_<id>. */
#ifdef __bpf__
struct {
	__uint(type, BPF_MAP_TYPE_HASH_OF_MAPS);
	__type(key, __u32);
	__array(
		values, struct {
			__uint(type, BPF_MAP_TYPE_LPM_TRIE);
			__uint(key_size, sizeof(struct policy_key));
			__uint(value_size, sizeof(struct policy_entry));
			__uint(max_entries, 16384);
			__uint(map_flags, BPF_F_NO_PREALLOC);
		});
} skep_policies SEC(".maps");
#endif

#endif /* ENDPOINT_POLICY_H */
