/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Scratch memory, checksums and stores of NAT46 and NAT64. For tc programs. */
#ifndef NAT_MEMORY46_H
#define NAT_MEMORY46_H

#include "../packet/rewrite.h"
#include "../packet/scratch.h"

/* Growth of a packet from IPv4 to IPv6, in bytes. */
#define FAMILY_GROWTH (sizeof(struct ip6) - sizeof(struct ip4))

#define SUM_CHUNK 256
#define SUM_CHUNKS 40

/* What is too large for stacks. */
struct headers46_memory {
	/* ICMP header and header of the packet in an error, before and after translation. */
	__be32 before[12];
	__be32 after[12];
	__be32 chunk[SUM_CHUNK / 4];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct headers46_memory);
} headers46_memory SEC(".maps");

static __always_inline struct headers46_memory *headers46_memory_of_cpu(void)
{
	__u32 index = 0;

	return bpf_map_lookup_elem(&headers46_memory, &index);
}

/* Stores bytes without checksum update. */
static __always_inline long store_header(CTX *ctx, __u32 offset, const void *from, __u32 size)
{
	return bpf_skb_store_bytes(ctx, offset, from, size, BPF_F_RECOMPUTE_CSUM);
}

/* Sum over `length` bytes of the packet. Returns 0, or less if there are more than are summed. */
static __noinline int sum_bytes(CTX *ctx, __u32 offset, __u32 length, __u32 *sum)
{
	struct headers46_memory *memory = headers46_memory_of_cpu();

	if (!memory)
		return -1;
	return sum_chunks(ctx, offset, length, sum, memory->chunk, SUM_CHUNK, SUM_CHUNKS);
}

#endif /* NAT_MEMORY46_H */
