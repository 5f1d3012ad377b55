/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Policy lookup of endpoints. */
#ifndef ENDPOINT_ENFORCE_H
#define ENDPOINT_ENFORCE_H

#include "../event/debug.h"
#include "../packet/scratch.h"
#include "policy.h"

static __always_inline __u8 policy_prefix(const struct policy_entry *entry)
{
	return entry->flags >> 3;
}

static __always_inline __u8 policy_match(__u8 prefix, int any_identity)
{
	if (!prefix)
		return any_identity ? MATCH_ALL : MATCH_L3;
	if (prefix <= 8)
		return any_identity ? MATCH_PROTO : MATCH_L3_PROTO;
	return any_identity ? MATCH_L4 : MATCH_L3_L4;
}

/* Of two matching entries, that of any identity wins by higher precedence, or by a longer port
 * prefix at the same precedence.
 */
static __always_inline int prefers_any(const struct policy_entry *exact,
				       const struct policy_entry *any)
{
	if (any->precedence != exact->precedence)
		return any->precedence > exact->precedence;
	return policy_prefix(any) > policy_prefix(exact);
}

/* Updates the counters of a matched entry. */
static __always_inline void policy_count(CTX *ctx, const struct policy_lookup *lookup, __u8 prefix,
					 int any_identity)
{
	struct policy_stats_key key = {
		.endpoint = lookup->endpoint,
		.prefix_len = prefix,
		.identity = any_identity ? 0 : lookup->identity,
		.direction = lookup->direction,
	};
	struct policy_stats first = {.packets = 1, .bytes = ctx->len};
	struct policy_stats *stats;

	if (!options.packet.policy_accounting)
		return;
	if (prefix >= 8)
		key.proto = lookup->proto;
	if (prefix > 8)
		key.port = lookup->port & bpf_htons((__u16)(0xffff0000U >> ((prefix - 8) & 0x1f)));
	flow_note_policy(&key);
	stats = bpf_map_lookup_elem(&cilium_policystats, &key);
	if (stats) {
		stats->packets++;
		stats->bytes += ctx->len;
	} else {
		bpf_map_update_elem(&cilium_policystats, &key, &first, BPF_NOEXIST);
	}
}

/* Looks up the endpoint's policy. Returns a drop reason, or 0. */
static __always_inline int policy_find(CTX *ctx, struct policy_lookup *lookup)
{
	struct policy_key key = {
		.prefixlen = POLICY_FULL_BITS,
		.identity = lookup->identity,
		.direction = lookup->direction,
		.proto = lookup->proto,
		.port = lookup->port,
	};
	const struct policy_entry *exact, *any, *entry;
	void *policy;

	if (lookup->open) {
		lookup->match = MATCH_ALL;
		policy_count(ctx, lookup, 0, 1);
		return 0;
	}
	policy = bpf_map_lookup_elem(&skep_policies, &lookup->endpoint);
	if (!policy)
		return DROP_NO_CONFIG;
	entry = exact = bpf_map_lookup_elem(policy, &key);
	if (!exact || exact->precedence != POLICY_MAX_PRECEDENCE) {
		key.identity = 0;
		any = bpf_map_lookup_elem(policy, &key);
		if (any && (!exact || prefers_any(exact, any)))
			entry = any;
		else
			any = NULL;
	} else {
		any = NULL;
	}
	if (!entry)
		return DROP_POLICY;
	lookup->match = policy_match(policy_prefix(entry), any != NULL);
	lookup->cookie = entry->cookie;
	lookup->auth = entry->auth & 0x7f;
	policy_count(ctx, lookup, policy_prefix(entry), any != NULL);
	if (entry->flags & POLICY_DENY)
		return DROP_POLICY_DENY;
	/* There is no authentication. */
	if (lookup->auth)
		return DROP_POLICY_AUTH;
	lookup->proxy_port = entry->proxy_port;
	/* Proxies are for packets that pods send. */
	return entry->proxy_port && lookup->direction == POLICY_INGRESS ? DROP_NO_CONFIG : 0;
}

/* Debug message: the verdict of a policy. */
static __noinline void debug_policy(CTX *ctx, const struct trace_ctx *trace,
				    const struct policy_lookup *lookup, int dropped)
{
	if (dropped)
		debug_output(ctx, trace, DEBUG_POLICY_DENIED, trace->source_identity,
			     trace->destination_identity, 0);
	else if (lookup->match == MATCH_L4 || lookup->match == MATCH_L3_L4)
		debug_output(ctx, trace, DEBUG_POLICY_L4, trace->source_identity,
			     trace->destination_identity,
			     (__u32)lookup->port << 16 | lookup->proto);
}

/* As policy_find(); sends a debug message, and lets denied packets of audited endpoints pass. */
static __noinline int policy_check(CTX *ctx, const struct trace_ctx *trace,
				   struct policy_lookup *lookup)
{
	int dropped = policy_find(ctx, lookup);

	if (DEBUGS(trace))
		debug_policy(ctx, trace, lookup, dropped);
	if (lookup->audit && (dropped == DROP_POLICY || dropped == DROP_POLICY_DENY ||
			      dropped == DROP_POLICY_AUTH)) {
		lookup->audit = AUDITED;
		return 0;
	}
	return dropped;
}

static __noinline void send_verdict(CTX *ctx, const struct trace_ctx *trace,
				    const struct policy_lookup *lookup, int dropped)
{
	struct verdict_event event = {
		.header = {.kind = EVENT_VERDICT, .version = 1},
		.remote_identity = lookup->identity,
		.verdict = dropped ? -dropped : lookup->proxy_port,
		.port = lookup->proto == IPPROTO_ICMP || lookup->proto == IPPROTO_ICMPV6
				? 0
				: bpf_ntohs(lookup->port),
		.proto = lookup->proto,
		.flags = (lookup->direction == POLICY_EGRESS ? VERDICT_EGRESS : VERDICT_INGRESS) |
			 (trace->ipv6 ? VERDICT_IPV6 : 0) | lookup->match << VERDICT_MATCH_SHIFT |
			 (lookup->audit == AUDITED ? VERDICT_AUDITED : 0),
		.auth = lookup->auth,
		.cookie = lookup->cookie,
	};

	if (!(trace->events & EVENTS_VERDICTS) || !events_allowed())
		return;
	event_header_fill(ctx, &event.header, trace, 0);
	event_send(ctx, &event.header, sizeof(event));
}

#endif /* ENDPOINT_ENFORCE_H */
