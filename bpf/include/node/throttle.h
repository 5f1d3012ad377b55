/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Rates of endpoints: departure times of the packets that they send, a token bucket for those that
 * they receive. Rust twin: bpf/maps/src/throttle.rs
 */
#ifndef NODE_THROTTLE_H
#define NODE_THROTTLE_H

#include "../common/compiler.h"
#include "../common/map.h"

struct throttle_key {
	__u32 endpoint;
	__u8 direction; /* THROTTLE_EGRESS or THROTTLE_INGRESS */
	__u8 pad[3];
};
_Static_assert(sizeof(struct throttle_key) == 8, "throttle_key layout");

#define THROTTLE_EGRESS 0
#define THROTTLE_INGRESS 1

struct throttle_value {
	__u64 rate;	/* bytes a second, 0: no limit */
	__u64 last;	/* egress: departure of the last packet; ingress: last packet. Monotonic
			 * nanoseconds
			 */
	__u64 limit;	/* egress: drop horizon, nanoseconds; ingress: tokens, bytes */
	__u32 priority; /* of packets, plus one; 0: unchanged */
	__u32 pad;
	__u64 reserved[3];
};
_Static_assert(sizeof(struct throttle_value) == 56, "throttle_value layout");

MAP(cilium_throttle, BPF_MAP_TYPE_HASH, struct throttle_key, struct throttle_value);

#define THROTTLE_SECOND 1000000000ULL
/* Products of a rate and a second fit in 64 bits; faster rates are no limit. */
#define THROTTLE_MAX_RATE (1ULL << 34)

/* Departure is beyond the drop horizon. */
#define THROTTLE_NEVER (~0ULL)

/* Departure of a packet that is to leave at `wanted`, or at once if that is past. 0: at once;
 * THROTTLE_NEVER: drop it. CPUs race for an entry: a packet may depart together with another.
 */
static __always_inline __u64 throttle_departure(struct throttle_value *egress, __u64 now,
						__u64 wanted, __u32 length)
{
	__u64 next;

	if (!egress->rate)
		return 0;
	/* Times beyond the horizon are of another clock. */
	if (wanted < now || wanted - now >= egress->limit)
		wanted = now;
	next = egress->last + length * THROTTLE_SECOND / egress->rate;
	if (next <= wanted) {
		egress->last = wanted;
		return 0;
	}
	if (next - now >= egress->limit)
		return THROTTLE_NEVER;
	egress->last = next;
	return next;
}

/* Takes tokens for a received packet; the burst is a second. Returns 0 if there are too few. */
static __always_inline int throttle_admit(struct throttle_value *ingress, __u64 now, __u32 length)
{
	__u64 passed = now - ingress->last, rate = ingress->rate, tokens = rate;

	if (!rate || rate > THROTTLE_MAX_RATE)
		return 1;
	if (passed < THROTTLE_SECOND)
		tokens = ingress->limit + passed * rate / THROTTLE_SECOND;
	if (tokens > rate)
		tokens = rate;
	ingress->last = now;
	if (tokens < length) {
		ingress->limit = tokens;
		return 0;
	}
	ingress->limit = tokens - length;
	return 1;
}

#if defined(__bpf__) && !defined(PACKET_XDP)
#include "../packet/context.h"
#include "options.h"

/* Paces a packet of an endpoint of this node, whose id is in its queue mapping. Returns 0 if it is
 * to be dropped.
 */
static __always_inline int throttle_egress(CTX *ctx)
{
	struct throttle_key key = {.endpoint = ctx->queue_mapping, .direction = THROTTLE_EGRESS};
	struct throttle_value *egress;
	__u64 departure;

	if (!options.packet.bandwidth || !key.endpoint)
		return 1;
	/* Devices select a queue by it. */
	ctx->queue_mapping = 0;
	egress = bpf_map_lookup_elem(&cilium_throttle, &key);
	if (!egress)
		return 1;
	if (egress->priority)
		ctx->priority = egress->priority - 1;
	departure = throttle_departure(egress, bpf_ktime_get_ns(), ctx->tstamp, ctx->wire_len);
	if (departure == THROTTLE_NEVER)
		return 0;
	if (departure)
		ctx->tstamp = departure;
	return 1;
}

/* The packet is not of an endpoint of this node: the queue that it was received by is no id. */
static __always_inline void throttle_clear(CTX *ctx)
{
	if (options.packet.bandwidth)
		ctx->queue_mapping = 0;
}

/* Returns 0 if a packet exceeds the rate of its receiver. */
static __always_inline int throttle_ingress(CTX *ctx, __u32 endpoint)
{
	struct throttle_key key = {.endpoint = endpoint, .direction = THROTTLE_INGRESS};
	struct throttle_value *ingress;

	if (!options.packet.bandwidth)
		return 1;
	ingress = bpf_map_lookup_elem(&cilium_throttle, &key);
	return !ingress || throttle_admit(ingress, bpf_ktime_get_ns(), ctx->wire_len);
}
#endif

#endif /* NODE_THROTTLE_H */
