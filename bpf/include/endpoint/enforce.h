/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Looks up what an endpoint's policy says of a packet. */
#ifndef ENDPOINT_ENFORCE_H
#define ENDPOINT_ENFORCE_H

#include "../event/debug.h"
#include "../packet/work.h"
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

/* Of two entries that match, the one for any identity wins if it takes precedence, or if it says
 * more of the port at the same precedence.
 */
static __always_inline int prefers_any(const struct policy_entry *exact,
				       const struct policy_entry *any)
{
	if (any->precedence != exact->precedence)
		return any->precedence > exact->precedence;
	return policy_prefix(any) > policy_prefix(exact);
}

/* Counts what an entry decides, under its own key. */
static __always_inline void policy_count(CTX *ctx, const struct policy_question *question,
					 __u8 prefix, int any_identity)
{
	struct policy_stats_key key = {
		.endpoint = question->endpoint,
		.prefix_len = prefix,
		.identity = any_identity ? 0 : question->identity,
		.direction = question->direction,
	};
	struct policy_stats first = {.packets = 1, .bytes = ctx->len};
	struct policy_stats *stats;

	if (!options.packet.policy_accounting)
		return;
	if (prefix >= 8)
		key.proto = question->proto;
	if (prefix > 8)
		key.port =
			question->port & bpf_htons((__u16)(0xffff0000U >> ((prefix - 8) & 0x1f)));
	stats = bpf_map_lookup_elem(&cilium_policystats, &key);
	if (stats) {
		stats->packets++;
		stats->bytes += ctx->len;
	} else {
		bpf_map_update_elem(&cilium_policystats, &key, &first, BPF_NOEXIST);
	}
}

/* Asks the endpoint's policy. Returns a drop reason, or 0. */
static __always_inline int policy_ask(CTX *ctx, struct policy_question *question)
{
	struct policy_key key = {
		.prefixlen = POLICY_FULL_BITS,
		.identity = question->identity,
		.direction = question->direction,
		.proto = question->proto,
		.port = question->port,
	};
	const struct policy_entry *exact, *any, *entry;
	void *policy;

	if (question->open) {
		question->match = MATCH_ALL;
		policy_count(ctx, question, 0, 1);
		return 0;
	}
	policy = bpf_map_lookup_elem(&skep_policies, &question->endpoint);
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
	question->match = policy_match(policy_prefix(entry), any != NULL);
	question->cookie = entry->cookie;
	question->auth = entry->auth & 0x7f;
	policy_count(ctx, question, policy_prefix(entry), any != NULL);
	if (entry->flags & POLICY_DENY)
		return DROP_POLICY_DENY;
	/* Nobody authenticates here, and there is no proxy to redirect to. */
	if (question->auth)
		return DROP_POLICY_AUTH;
	return entry->proxy_port ? DROP_NO_CONFIG : 0;
}

/* Debug message: the verdict of a policy. */
static __noinline void debug_policy(CTX *ctx, const struct path *path,
				    const struct policy_question *question, int dropped)
{
	if (dropped)
		debug_output(ctx, path, DEBUG_POLICY_DENIED, path->source_identity,
			     path->destination_identity, 0);
	else if (question->match == MATCH_L4 || question->match == MATCH_L3_L4)
		debug_output(ctx, path, DEBUG_POLICY_L4, path->source_identity,
			     path->destination_identity,
			     (__u32)question->port << 16 | question->proto);
}

/* As above; sends a debug message. */
static __noinline int policy_check(CTX *ctx, const struct path *path,
				   struct policy_question *question)
{
	int dropped = policy_ask(ctx, question);

	if (DEBUGS())
		debug_policy(ctx, path, question, dropped);
	return dropped;
}

static __noinline void send_verdict(CTX *ctx, const struct path *path,
				    const struct policy_question *question, int dropped)
{
	struct verdict_event event = {
		.header = {.kind = EVENT_VERDICT, .version = 1},
		.remote_identity = question->identity,
		.verdict = -dropped,
		.port = question->proto == IPPROTO_ICMP || question->proto == IPPROTO_ICMPV6
				? 0
				: bpf_ntohs(question->port),
		.proto = question->proto,
		.flags = (question->direction == POLICY_EGRESS ? VERDICT_EGRESS : VERDICT_INGRESS) |
			 (path->ipv6 ? VERDICT_IPV6 : 0) | question->match << VERDICT_MATCH_SHIFT,
		.auth = question->auth,
		.cookie = question->cookie,
	};

	if (!options.packet.verdict_events || !events_allowed())
		return;
	event_header_fill(ctx, &event.header, path, 0);
	event_send(ctx, &event.header, sizeof(event));
}

#endif /* ENDPOINT_ENFORCE_H */
