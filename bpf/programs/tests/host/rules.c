/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Decisions of socket load balancing. */
#include "event/ratelimit.h"
#include "socket/rules.h"

#include "check.h"

static void matches_ports_of_the_range(void)
{
	CHECK(port_in_range(bpf_htons(30000), 30000, 32767));
	CHECK(port_in_range(bpf_htons(32767), 30000, 32767));
	CHECK(!port_in_range(bpf_htons(29999), 30000, 32767));
	CHECK(!port_in_range(bpf_htons(32768), 30000, 32767));
}

static void chooses_slots_from_one_to_count(void)
{
	__u64 value;
	int seen[4] = {};

	for (value = 0; value < 300; value++) {
		__u16 slot = slot_of(value * 7919, 3);

		CHECK(slot >= 1 && slot <= 3);
		seen[slot & 3]++;
	}
	CHECK(seen[1] && seen[2] && seen[3]);
	CHECK(slot_of(~0ULL, 1) == 1);
}

static void converts_affinity_timeouts(void)
{
	/* The algorithm in the upper byte does not count. */
	struct lb_service svc = {.backend_id = 0x02000000 | 10800};

	CHECK(affinity_timeout(&svc, 0, 250) == 10800);
	CHECK(affinity_timeout(&svc, 1, 250) == 10800ULL * 250 / 256);
	CHECK(affinity_timeout(&svc, 1, 1000) == 10800ULL * 1000 / 256);
}

static void finds_surrogates_of_node_addresses(void)
{
	struct ipcache_value host = {.identity = IDENTITY_HOST};
	struct ipcache_value peer = {.identity = IDENTITY_REMOTE_NODE};
	struct ipcache_value apiserver = {.identity = IDENTITY_KUBE_APISERVER};
	struct ipcache_value scoped = {.identity = IDENTITY_SCOPE_NODE | 5};
	struct ipcache_value pod = {.identity = 12345};
	struct ipcache_value other_cluster = peer;

	other_cluster.flags = IPCACHE_REMOTE_CLUSTER;
	CHECK(has_surrogates(&host, 0, 0) && has_surrogates(&host, 1, 1));
	CHECK(has_surrogates(&peer, 1, 1));
	CHECK(has_surrogates(&apiserver, 1, 1) && has_surrogates(&scoped, 1, 1));
	CHECK(!has_surrogates(&peer, 1, 0) && !has_surrogates(&peer, 0, 1));
	CHECK(!has_surrogates(&other_cluster, 1, 1));
	CHECK(!has_surrogates(&pod, 1, 1) && !has_surrogates(NULL, 1, 1));
}

static void matches_surrogates_to_ports(void)
{
	struct lb_service node_port = {.flags = LB_NODE_PORT};
	struct lb_service host_port = {.flags = LB_HOST_PORT};
	struct lb_service loopback_only = {.flags = LB_HOST_PORT, .flags2 = LB2_LOOPBACK};

	CHECK(matching_surrogate(NULL, 1, 1) == NULL);
	CHECK(matching_surrogate(&node_port, 1, 0) == &node_port);
	CHECK(matching_surrogate(&node_port, 0, 0) == NULL);
	CHECK(matching_surrogate(&host_port, 0, 0) == &host_port);
	CHECK(matching_surrogate(&host_port, 1, 0) == NULL);
	CHECK(matching_surrogate(&loopback_only, 0, 1) == &loopback_only);
	CHECK(matching_surrogate(&loopback_only, 0, 0) == NULL);
}

static void wants_addresses_of_the_host(void)
{
	struct lb_service external = {.flags = LB_EXTERNAL_IP};
	struct lb_service host_port = {.flags = LB_HOST_PORT};
	struct lb_service cluster_ip = {};

	CHECK(needs_host_address(&external, 0, 1) && !needs_host_address(&external, 0, 0));
	CHECK(needs_host_address(&host_port, 0, 0) && !needs_host_address(&host_port, 1, 1));
	CHECK(!needs_host_address(&cluster_ip, 0, 1));
}

static void rejects_services_without_backends(void)
{
	struct lb_service cluster = {.flags = LB_NODE_PORT};
	struct lb_service local = {.flags = LB_NODE_PORT | LB_EXT_LOCAL};
	struct lb_service internal_local = {.flags2 = LB2_INT_LOCAL};
	struct lb_service external_local = {.flags = LB_EXT_LOCAL};

	CHECK(no_backends(&cluster, 1) == -EHOSTUNREACH);
	CHECK(no_backends(&cluster, 0) == UNTRANSLATED);
	CHECK(no_backends(&local, 0) == -EHOSTUNREACH);
	CHECK(no_backends(&internal_local, 0) == -EHOSTUNREACH);
	/* A ClusterIP follows the internal policy alone. */
	CHECK(no_backends(&external_local, 0) == UNTRANSLATED);
}

static void translates_back_what_is_still_served(void)
{
	struct lb_service served = {.rev_nat_index = 7, .count = 1};
	struct lb_service empty = {.rev_nat_index = 7};
	struct lb_service l7 = {.rev_nat_index = 7, .flags2 = LB2_L7};

	CHECK(still_served(&served, 7) && still_served(&l7, 7));
	CHECK(!still_served(&served, 8) && !still_served(&empty, 7) && !still_served(NULL, 7));
}

static void guards_ports_served_by_translation(void)
{
	struct lb_service node_port = {.flags = LB_NODE_PORT};
	struct lb_service l7 = {.flags = LB_NODE_PORT, .flags2 = LB2_L7};
	struct lb_service delegated = {.flags = LB_NODE_PORT, .flags2 = LB2_LOOPBACK};
	struct lb_service cluster_ip = {};

	CHECK(lb_guards_port(&node_port) && !lb_guards_port(&cluster_ip));
	CHECK(!lb_guards_port(&l7) && !lb_guards_port(&delegated));
	CHECK(lb_delegates_if_local(&delegated) && !lb_delegates_if_local(&node_port));
}

static void aggregates_traces_by_level(void)
{
	CHECK(trace_level_allows(0, CALL_REVERSE) && trace_level_allows(0, CALL_SENDMSG));
	CHECK(!trace_level_allows(1, CALL_REVERSE) && trace_level_allows(2, CALL_SENDMSG));
	CHECK(!trace_level_allows(3, CALL_SENDMSG) && trace_level_allows(4, CALL_CONNECT));
}

static void takes_one_token_an_interval(void)
{
	struct ratelimit_value bucket = {.last_topup = 1000};

	CHECK(!bucket_take(&bucket, 1099, 100));
	CHECK(bucket_take(&bucket, 1100, 100));
	CHECK(!bucket_take(&bucket, 1150, 100));
	/* Tokens do not add up. */
	CHECK(bucket_take(&bucket, 9000, 100));
	CHECK(!bucket_take(&bucket, 9001, 100));
}

static void supports_tcp_and_udp(void)
{
	CHECK(socket_proto_supported(IPPROTO_TCP) && socket_proto_supported(IPPROTO_UDP));
	CHECK(socket_proto_supported(IPPROTO_UDPLITE) && !socket_proto_supported(IPPROTO_SCTP));
}

int main(void)
{
	matches_ports_of_the_range();
	chooses_slots_from_one_to_count();
	converts_affinity_timeouts();
	finds_surrogates_of_node_addresses();
	matches_surrogates_to_ports();
	wants_addresses_of_the_host();
	rejects_services_without_backends();
	translates_back_what_is_still_served();
	guards_ports_served_by_translation();
	aggregates_traces_by_level();
	takes_one_token_an_interval();
	supports_tcp_and_udp();
	return failures;
}
