/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The programs at interfaces: of pods, of the node, and of the pair that joins the two. One set
 * serves all interfaces: what differs between them is in maps.
 */
#include "packet/host.h"

const volatile struct node_options options = {};

/* Where a packet is, and what it is known to be, before anything is looked at. */
static __always_inline void begin(struct path *path, __u16 endpoint, __u32 identity, __u8 direction,
				  __u8 file)
{
	__builtin_memset(path, 0, sizeof(*path));
	path->now = clock_now();
	path->endpoint = endpoint;
	path->source_identity = identity;
	path->direction = direction;
	path->file = file;
	path->reason = TRACE_REASON_UNKNOWN;
}

static __always_inline int finish(struct __sk_buff *skb, struct path *path, int verdict)
{
	return verdict < 0 ? drop_packet(skb, path, -verdict) : verdict;
}

/* Between the header of a link and what is in it. */
static __always_inline __be16 ether_type(struct __sk_buff *skb)
{
	const struct ethernet *ethernet = packet_bytes(skb, 0, sizeof(*ethernet));

	return ethernet ? ethernet->type : 0;
}

/* What a pod sends, at the interface on this side. */
SEC("tc")
int cil_from_container(struct __sk_buff *skb)
{
	__u32 ifindex = skb->ifindex;
	const struct endpoint *sender = bpf_map_lookup_elem(&skep_endpoints, &ifindex);
	union work *work = this_work();
	struct path *path;
	int verdict;
	__be16 type;

	if (!work)
		return TC_ACT_SHOT;
	/* The path is at the beginning for both address families. */
	path = &work->v4.path;
	if (!sender) {
		begin(path, 0, 0, METRIC_EGRESS, METRIC_FILE_LXC);
		return finish(skb, path, FAIL(path, DROP_NO_CONFIG));
	}
	begin(path, sender->id, sender->identity, METRIC_EGRESS, METRIC_FILE_LXC);
	type = ether_type(skb);
	path->ipv6 = type == bpf_htons(ETH_P_IPV6);
	trace_packet(skb, path, TRACE_FROM_ENDPOINT, 0, NULL);
	switch (type) {
	case bpf_htons(ETH_P_IP):
		if (!options.ipv4)
			return TC_ACT_OK;
		work->v4.sender = *sender;
		verdict = send4(skb, &work->v4);
		break;
	case bpf_htons(ETH_P_IPV6):
		if (!options.ipv6)
			return TC_ACT_OK;
		work->v6.sender = *sender;
		verdict = send6(skb, &work->v6);
		break;
	case bpf_htons(ETH_P_ARP):
		verdict = answer_arp(skb, sender);
		break;
	default:
		verdict = FAIL(path, DROP_UNSUPPORTED_L3);
	}
	return finish(skb, path, verdict);
}

/* What an interface of the node receives. */
SEC("tc")
int cil_from_netdev(struct __sk_buff *skb)
{
	__u32 ifindex = skb->ifindex;
	union work *work = this_work();
	const struct device *device;
	int verdict = TC_ACT_OK;
	struct path *path;
	__be16 type;

	if (!work)
		return TC_ACT_SHOT;
	path = &work->v4.path;
	begin(path, options.packet.host_endpoint, 0, METRIC_INGRESS, METRIC_FILE_HOST);
	COUNT_PACKET(skb, REASON_PLAINTEXT, METRIC_INGRESS, METRIC_FILE_HOST);
	if (vlan_tagged(skb)) {
		if (vlan_allowed(skb))
			return TC_ACT_OK;
		return finish(skb, path, FAIL(path, DROP_VLAN));
	}
	device = bpf_map_lookup_elem(&skep_devices, &ifindex);
	if (!device)
		return TC_ACT_OK;
	type = ether_type(skb);
	if (type == bpf_htons(ETH_P_IP) && options.ipv4) {
		work->v4.device = *device;
		trace_from_network4(skb, path);
		verdict = from_network4(skb, &work->v4);
	} else if (type == bpf_htons(ETH_P_IPV6) && options.ipv6) {
		path->ipv6 = 1;
		work->v6.device = *device;
		trace_from_network6(skb, path);
		verdict = from_network6(skb, &work->v6);
	}
	/* Rewritten, and left to the routes of the kernel. */
	if (verdict == TC_ACT_PIPE)
		verdict = TC_ACT_OK;
	return finish(skb, path, verdict);
}

/* What leaves by an interface of the node. */
SEC("tc")
int cil_to_netdev(struct __sk_buff *skb)
{
	__u32 ifindex = skb->ifindex;
	union work *work = this_work();
	const struct device *device;
	struct path *path;
	__be16 type;

	if (!work)
		return TC_ACT_SHOT;
	path = &work->v4.path;
	begin(path, options.packet.host_endpoint, marked_identity(skb->mark), METRIC_EGRESS,
	      METRIC_FILE_HOST);
	type = ether_type(skb);
	path->ipv6 = type == bpf_htons(ETH_P_IPV6);
	device = bpf_map_lookup_elem(&skep_devices, &ifindex);
	if (device && !vlan_tagged(skb) && (skb->mark & MARK_MASK) != MARK_SNAT_DONE) {
		if (type == bpf_htons(ETH_P_IP) && options.ipv4) {
			work->v4.device = *device;
			return finish(skb, path, to_network4(skb, &work->v4));
		}
		if (type == bpf_htons(ETH_P_IPV6) && options.ipv6) {
			work->v6.device = *device;
			return finish(skb, path, to_network6(skb, &work->v6));
		}
	}
	COUNT_PACKET(skb, REASON_FORWARDED, METRIC_EGRESS, METRIC_FILE_HOST);
	trace_packet(skb, path, TRACE_TO_NETWORK, skb->ifindex, NULL);
	return TC_ACT_OK;
}

/* What the node sends to pods. */
SEC("tc")
int cil_from_host(struct __sk_buff *skb)
{
	union work *work = this_work();
	int verdict = TC_ACT_OK;
	struct path *path;
	__be16 type;

	if (!work)
		return TC_ACT_SHOT;
	path = &work->v4.path;
	begin(path, options.packet.host_endpoint, marked_identity(skb->mark), METRIC_INGRESS,
	      METRIC_FILE_HOST);
	type = ether_type(skb);
	skb->mark = 0;
	path->ipv6 = type == bpf_htons(ETH_P_IPV6);
	if (!path->source_identity)
		path->source_identity = world_identity(options.packet.dual_stack, path->ipv6);
	COUNT_PACKET(skb, REASON_PLAINTEXT, METRIC_INGRESS, METRIC_FILE_HOST);
	trace_packet(skb, path, TRACE_FROM_HOST, 0, NULL);
	if (type == bpf_htons(ETH_P_IP) && options.ipv4)
		verdict = from_host4(skb, &work->v4);
	else if (type == bpf_htons(ETH_P_IPV6) && options.ipv6)
		verdict = from_host6(skb, &work->v6);
	return finish(skb, path, verdict);
}

/* What pods send to the node. */
SEC("tc")
int cil_to_host(struct __sk_buff *skb)
{
	union work *work = this_work();
	struct path *path;

	if (!work)
		return TC_ACT_SHOT;
	path = &work->v4.path;
	begin(path, options.packet.host_endpoint, marked_identity(skb->mark), METRIC_EGRESS,
	      METRIC_FILE_HOST);
	path->ipv6 = ether_type(skb) == bpf_htons(ETH_P_IPV6);
	COUNT_PACKET(skb, REASON_FORWARDED, METRIC_EGRESS, METRIC_FILE_HOST);
	trace_packet(skb, path, TRACE_TO_STACK, options.packet.cilium_host, NULL);
	return TC_ACT_OK;
}

/* The kernel wants "GPL" in it for helpers that only GPL-compatible programs may call. */
char LICENSE[] SEC("license") = "Dual BSD/GPL";
