/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Flow table of one address family. */

#define FLOWS AF_FN(skep_flows)
#define FLOW_L4 (L3 + sizeof(ip_t))
#define FLOW_ETHER_TYPE AF_PASTE(FLOW_ETHER_TYPE, AF)
#define FLOW_ETHER_TYPE4 bpf_htons(ETH_P_IP)
#define FLOW_ETHER_TYPE6 bpf_htons(ETH_P_IPV6)

/* Headers of a packet without options and extension headers: up to the ports. */
#define FLOW_HEADERS (FLOW_L4 + 4)
#define FLOW_IP(headers_) ((ip_t *)((void *)(headers_) + L3))
/* Source and destination port. */
#define FLOW_PORTS(headers_) ((__be16 *)((void *)(headers_) + FLOW_L4))

/* The packet is whole, has ports, and outlives this hop. */
static __always_inline int AF_FN(flow_is_plain)(const ip_t *ip, __u32 size)
{
	if (ip->proto != IPPROTO_TCP && ip->proto != IPPROTO_UDP)
		return 0;
#if AF == 4
	return ip->version_ihl == 0x45 &&
	       !(ip->fragment & bpf_htons(IP4_MORE_FRAGMENTS | IP4_FRAGMENT_OFFSET)) &&
	       ip->ttl > 1 && (size > 0xffff || L3 + bpf_ntohs(ip->length) <= size);
#else
	return size && (bpf_ntohl(ip->flow) >> 28) == 6 && ip->hop_limit > 1;
#endif
}

static __always_inline __u8 AF_FN(flow_hop_limit)(const ip_t *ip)
{
#if AF == 4
	return ip->ttl;
#else
	return ip->hop_limit;
#endif
}

/* The packet passes the program: begins the notes. `epoch` was read before any other map; `facts`
 * are TCP flags and the length shifted by 16.
 */
static __noinline void AF_FN(flow_begin)(CTX *ctx, const flow_key_t *key, __u32 epoch, __u32 input,
					 __u32 facts)
{
	struct flow_note *note = this_flow_note();
	const void *headers;

	if (!note)
		return;
	note->plan = FLOW_NOTHING;
	headers = packet_bytes(ctx, 0, FLOW_HEADERS);
	if (!headers)
		return;
	note->plan = facts & (TCP_SYN | TCP_FIN | TCP_RST) ? FLOW_WATCH : FLOW_RECORD;
	note->ipv6 = AF == 6;
	note->has_mtu = 0;
	note->untranslated = 0;
	note->hop_limit = AF_FN(flow_hop_limit)(FLOW_IP(headers));
	note->length = facts >> 16;
	note->size = packet_length(ctx);
	__builtin_memcpy(note->macs, headers, sizeof(note->macs));
	note->key.AF_FN(v) = *key;
	__builtin_memset(&note->entry.AF_FN(v), 0, sizeof(note->entry.AF_FN(v)));
	note->entry.both.epoch = epoch;
	note->entry.both.now = clock_now();
	note->entry.both.mark_before = FLOW_MARK(ctx);
	note->entry.both.input = input;
	note->entry.both.tcp_flags = facts;
}

/* Writes the headers of a recorded flow. Returns 0, or less: the packet is too short. */
static __always_inline int AF_FN(flow_rewrite)(CTX *ctx, const flow_t *flow, __u8 proto)
{
	void *headers = packet_bytes(ctx, 0, FLOW_HEADERS);
	__u64 flags = proto == IPPROTO_UDP ? BPF_F_MARK_MANGLED_0 : 0;
	__u32 checksum = FLOW_L4 + (proto == IPPROTO_UDP ? UDP_CHECKSUM : TCP_CHECKSUM);
	__u8 hop_limit;

	if (!headers)
		return -1;
	if (flow->flow.changes & FLOW_NEW_MACS)
		__builtin_memcpy(headers, flow->flow.macs, sizeof(flow->flow.macs));
	hop_limit = AF_FN(flow_hop_limit)(FLOW_IP(headers)) - flow->flow.hops;
#if AF == 4
	if (flow->flow.addresses)
		FLOW_IP(headers)->checksum =
			checksum_add(FLOW_IP(headers)->checksum, flow->flow.addresses);
	if (flow->flow.hops) {
		FLOW_IP(headers)->checksum = checksum_replace(
			FLOW_IP(headers)->checksum, bpf_htons((__u16)(FLOW_IP(headers)->ttl << 8)),
			bpf_htons((__u16)(hop_limit << 8)));
		FLOW_IP(headers)->ttl = hop_limit;
	}
#else
	FLOW_IP(headers)->hop_limit = hop_limit;
#endif
	if (!(flow->flow.changes & FLOW_NEW_TUPLE))
		return 0;
	AF_COPY(FLOW_IP(headers)->source, flow->saddr);
	AF_COPY(FLOW_IP(headers)->destination, flow->daddr);
	FLOW_PORTS(headers)[0] = flow->sport;
	FLOW_PORTS(headers)[1] = flow->dport;
	if (flow->flow.addresses &&
	    replace_l4_checksum(ctx, checksum, 0, flow->flow.addresses, BPF_F_PSEUDO_HDR | flags))
		return -1;
	if (flow->flow.ports && replace_l4_checksum(ctx, checksum, 0, flow->flow.ports, flags))
		return -1;
	return 0;
}

/* Looks up the flow of the packet. Returns a verdict of the kernel, or FLOW_MISS. */
GLOBAL int AF_FN(flow_lookup)(CTX *ctx, __u32 hook, __u32 input)
{
	const void *headers = packet_bytes(ctx, 0, FLOW_L4 + 8);
	flow_key_t key = {};
	__u32 zero = 0, header = sizeof(ip_t) + sizeof(struct udp), miss, epoch;
	const struct tcp *tcp;
	const struct flow_epoch *current;
	__u64 state;
	const flow_t *flow;
	__u32 plan = FLOW_NOTHING;
	__u8 tcp_flags = 0;
	__u16 length;

	/* Extension headers may precede those of the protocol. */
	if (headers && FLOW_IP(headers)->proto != IPPROTO_ICMP &&
	    FLOW_IP(headers)->proto != IPPROTO_ICMPV6)
		plan = FLOW_STRANGE;
	current = bpf_map_lookup_elem(&skep_epoch, &zero);
	if (!headers || !current || !AF_FN(flow_is_plain)(FLOW_IP(headers), packet_length(ctx)))
		goto not_plain;
	/* Both at once. */
	state = *(const volatile __u64 *)current;
	if (state >> 32) {
		flow_skip(FLOW_OLD_EPOCH, FLOW_NOTHING);
		return FLOW_MISS;
	}
	epoch = state;
	AF_COPY(key.saddr, FLOW_IP(headers)->source);
	AF_COPY(key.daddr, FLOW_IP(headers)->destination);
	key.sport = FLOW_PORTS(headers)[0];
	key.dport = FLOW_PORTS(headers)[1];
	key.ifindex = packet_interface(ctx);
	key.proto = FLOW_IP(headers)->proto;
	key.hook = hook;
	if (key.proto == IPPROTO_TCP) {
		tcp = packet_bytes(ctx, FLOW_L4, sizeof(*tcp));
		if (!tcp)
			goto not_plain;
		tcp_flags = tcp->flags;
		header = sizeof(ip_t) + (tcp->offset >> 4) * 4;
	}
	length = flow_length(ctx, header);
	miss = FLOW_NOT_PLAIN;
	if (tcp_flags & (TCP_SYN | TCP_FIN | TCP_RST))
		goto missed;
	flow = bpf_map_lookup_elem(&FLOWS, &key);
	if (!flow) {
		miss = FLOW_UNKNOWN;
		goto missed;
	}
	if (flow->flow.epoch != epoch) {
		miss = FLOW_OLD_EPOCH;
		goto missed;
	}
	if (flow->flow.now != (__u32)clock_now()) {
		miss = FLOW_OLD_TICK;
		goto missed;
	}
	headers = packet_bytes(ctx, 0, FLOW_HEADERS);
	if (!headers || flow->flow.mark_before != FLOW_MARK(ctx) || flow->flow.input != input ||
	    flow->flow.length < length ||
	    flow->flow.hops >= AF_FN(flow_hop_limit)(FLOW_IP(headers)) ||
	    (tcp_flags & ~flow->flow.tcp_flags & options.packet.ct_report_flags)) {
		miss = FLOW_DIFFERENT;
		goto missed;
	}
	if (AF_FN(flow_rewrite)(ctx, flow, key.proto))
		return DROPPED;
#ifndef PACKET_XDP
	if (flow->flow.changes & FLOW_NEW_MARK)
		ctx->mark = flow->flow.mark_after;
#endif
	flow_count_all(ctx, &flow->flow);
	flow_tally(FLOW_HIT);
	return flow_send(ctx, &flow->flow);
missed:
	flow_tally(miss);
	AF_FN(flow_begin)(ctx, &key, epoch, input, (__u32)length << 16 | tcp_flags);
	return FLOW_MISS;
not_plain:
	flow_skip(FLOW_NOT_PLAIN, plan);
	return FLOW_MISS;
}

/* Removes the packet's flow and its replies', at this interface and where the packet leaves. */
static __noinline void AF_FN(flow_remove)(struct flow_note *note, const void *headers)
{
	flow_key_t *key = &note->key.AF_FN(v);

	bpf_map_delete_elem(&FLOWS, key);
	AF_COPY(key->saddr, FLOW_IP(headers)->destination);
	AF_COPY(key->daddr, FLOW_IP(headers)->source);
	key->sport = FLOW_PORTS(headers)[1];
	key->dport = FLOW_PORTS(headers)[0];
	key->hook = FLOW_EGRESS;
	bpf_map_delete_elem(&FLOWS, key);
	if (note->entry.both.ifindex)
		key->ifindex = note->entry.both.ifindex;
	key->hook = FLOW_INGRESS;
	bpf_map_delete_elem(&FLOWS, key);
	if (!options.packet.xdp)
		return;
	key->hook = FLOW_XDP;
	bpf_map_delete_elem(&FLOWS, key);
}

/* Records the flow of the packet, or removes it. */
GLOBAL int AF_FN(flow_end)(CTX *ctx, int verdict)
{
	void *headers = packet_bytes(ctx, 0, FLOW_HEADERS);
	struct flow_note *note = this_flow_note();
	const flow_key_t *key;
	struct flow *flow;
	flow_t *entry;

	if (!note)
		return 0;
	if (!headers || ((const struct ethernet *)headers)->type != FLOW_ETHER_TYPE) {
		flow_end_unsent(note);
		return 0;
	}
	if (note->plan != FLOW_RECORD) {
		if (verdict == DROPPED || note->key.AF_FN(v).proto != FLOW_IP(headers)->proto)
			flow_end_unsent(note);
		else
			AF_FN(flow_remove)(note, headers);
		return 0;
	}
	/* Encapsulated packets, and ICMP errors in their place, have other lengths. */
	if (note->size != packet_length(ctx) || note->key.AF_FN(v).proto != FLOW_IP(headers)->proto)
		return 0;
	entry = &note->entry.AF_FN(v);
	flow = &entry->flow;
	key = &note->key.AF_FN(v);
#ifdef PACKET_XDP
	if (verdict == XDP_DONE)
		flow->exit = FLOW_PASS;
	else if (verdict != XDP_TX && verdict != XDP_REDIRECT)
		return 0;
#else
	if (verdict == TC_ACT_OK)
		flow->exit = FLOW_PASS;
	else if (verdict != TC_ACT_REDIRECT)
		return 0;
#endif
	if (!flow->exit || (flow->exit == FLOW_PASS && note->untranslated))
		return 0;
	flow->length = note->has_mtu ? note->length : FLOW_ANY_LENGTH;
	flow->hops = note->hop_limit - AF_FN(flow_hop_limit)(FLOW_IP(headers));
	__builtin_memcpy(flow->macs, headers, sizeof(flow->macs));
	if (__builtin_memcmp(flow->macs, note->macs, sizeof(flow->macs)))
		flow->changes |= FLOW_NEW_MACS;
	flow->mark_after = FLOW_MARK(ctx);
	if (flow->mark_after != flow->mark_before)
		flow->changes |= FLOW_NEW_MARK;
	AF_COPY(entry->saddr, FLOW_IP(headers)->source);
	AF_COPY(entry->daddr, FLOW_IP(headers)->destination);
	entry->sport = FLOW_PORTS(headers)[0];
	entry->dport = FLOW_PORTS(headers)[1];
	/* Differences are not 0. */
	if (!AF_SAME(entry->saddr, key->saddr) || !AF_SAME(entry->daddr, key->daddr))
		flow->addresses = sum_difference((const __u32 *)&key->saddr,
						 (const __u32 *)&entry->saddr, AF_SIZE / 2);
	if (entry->sport != key->sport || entry->dport != key->dport)
		flow->ports =
			sum_difference((const __u32 *)&key->sport, (const __u32 *)&entry->sport, 1);
	if (flow->addresses || flow->ports)
		flow->changes |= FLOW_NEW_TUPLE;
	bpf_map_update_elem(&FLOWS, key, entry, BPF_ANY);
	flow_tally(FLOW_RECORDED);
	return 0;
}
