/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Token buckets for events. Rust twin: bpf/maps/src/event.rs */
#ifndef EVENT_RATELIMIT_H
#define EVENT_RATELIMIT_H

#include "../common/map.h"

struct ratelimit_key {
	__u32 usage;
	__u32 ifindex; /* only of usage 1 */
};
_Static_assert(sizeof(struct ratelimit_key) == 8, "ratelimit_key layout");

struct ratelimit_value {
	__u64 last_topup; /* monotonic nanoseconds */
	__u64 tokens;
};
_Static_assert(sizeof(struct ratelimit_value) == 16, "ratelimit_value layout");

MAP(cilium_ratelimit, BPF_MAP_TYPE_LRU_HASH, struct ratelimit_key, struct ratelimit_value);

/* Events dropped, by usage. */
MAP(cilium_ratelimit_metrics, BPF_MAP_TYPE_HASH, __u32, __u64);

#define RATELIMIT_ICMP6 1
#define RATELIMIT_EVENTS 2
#define RATELIMIT_SOCKET_EVENTS 3

#define ICMP6_REPLY_RATE 100 /* a second and interface */
#define ICMP6_REPLY_BURST 1000

/* Takes a token: one per interval, without burst. */
static __always_inline int bucket_take(struct ratelimit_value *bucket, __u64 now, __u64 interval)
{
	if (now - bucket->last_topup >= interval) {
		bucket->last_topup = now;
		bucket->tokens = 1;
	}
	if (!bucket->tokens)
		return 0;
	bucket->tokens--;
	return 1;
}

/* Takes a token: `rate` per second, up to `burst`. */
static __always_inline int bucket_take_rate(struct ratelimit_value *bucket, __u64 now, __u32 rate,
					    __u32 burst)
{
	__u64 passed = now - bucket->last_topup;
	__u64 tokens = bucket->tokens;

	if (passed >= 1000000000ULL / rate) {
		tokens += passed >= 1000000000ULL ? burst : passed * rate / 1000000000ULL;
		if (tokens > burst)
			tokens = burst;
		bucket->last_topup = now;
	}
	bucket->tokens = tokens ? tokens - 1 : 0;
	return tokens > 0;
}

#ifdef __bpf__
static __always_inline void ratelimit_count(__u32 usage)
{
	__u64 one = 1, *dropped = bpf_map_lookup_elem(&cilium_ratelimit_metrics, &usage);

	if (dropped)
		__sync_fetch_and_add(dropped, 1);
	else
		bpf_map_update_elem(&cilium_ratelimit_metrics, &usage, &one, BPF_ANY);
}

/* Returns 1 within the limit of `rate` and `burst`; counts what exceeds it. */
static __always_inline int ratelimit_take_rate(__u32 usage, __u32 ifindex, __u32 rate, __u32 burst)
{
	struct ratelimit_key key = {.usage = usage, .ifindex = ifindex};
	struct ratelimit_value fresh = {}, *bucket;
	__u64 now = bpf_ktime_get_ns();

	bucket = bpf_map_lookup_elem(&cilium_ratelimit, &key);
	if (!bucket) {
		fresh.last_topup = now;
		fresh.tokens = rate - 1;
		bpf_map_update_elem(&cilium_ratelimit, &key, &fresh, BPF_ANY);
		return 1;
	}
	if (bucket_take_rate(bucket, now, rate, burst))
		return 1;
	ratelimit_count(usage);
	return 0;
}

/* Returns 1 if an event may be sent; counts those that exceed the limit. */
static __always_inline int ratelimit_take(__u32 usage, __u64 interval)
{
	struct ratelimit_key key = {.usage = usage};
	struct ratelimit_value fresh = {}, *bucket;
	__u64 now = bpf_ktime_get_ns();

	bucket = bpf_map_lookup_elem(&cilium_ratelimit, &key);
	if (!bucket) {
		fresh.last_topup = now;
		bpf_map_update_elem(&cilium_ratelimit, &key, &fresh, BPF_ANY);
		return 1;
	}
	if (bucket_take(bucket, now, interval))
		return 1;
	ratelimit_count(usage);
	return 0;
}
#endif

#endif /* EVENT_RATELIMIT_H */
