/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Changes addresses, ports and hop limits of packets, with their checksums. */
#ifndef PACKET_REWRITE_H
#define PACKET_REWRITE_H

#include "checksum.h"
#include "packet.h"

#define TCP_CHECKSUM 16
#define UDP_CHECKSUM 6
#define ICMP_CHECKSUM 2

enum side {
	SOURCE,
	DESTINATION,
};

/* Updates a transport checksum: `from` by `to`, of 2 bytes, or by a difference of sums if the size
 * in `flags` is 0. Returns 0, or less if the packet is too short.
 */
static __always_inline long replace_l4_checksum(CTX *ctx, __u32 offset, __u64 from, __u64 to,
						__u64 flags)
{
#ifdef PACKET_XDP
	__u16 *checksum = packet_bytes(ctx, offset, sizeof(*checksum));
	__u16 fresh;

	if (!checksum)
		return -1;
	if ((flags & BPF_F_MARK_MANGLED_0) && !*checksum)
		return 0;
	if (flags & BPF_F_HDR_FIELD_MASK)
		fresh = checksum_replace(*checksum, from, to);
	else
		fresh = checksum_add(*checksum, to);
	*checksum = fresh || !(flags & BPF_F_MARK_MANGLED_0) ? fresh : 0xffff;
	return 0;
#else
	return bpf_l4_csum_replace(ctx, offset, from, to, flags);
#endif
}

#ifndef PACKET_XDP
/* Adds bytes of the packet to a checksum: up to `chunks` times `size`, a power of 2, with buffer
 * `chunk`. Returns 0, or less for another length.
 */
static __always_inline int sum_chunks(CTX *ctx, __u32 offset, __u32 length, __u32 *sum,
				      __be32 *chunk, const __u32 size, const int chunks)
{
	__u32 rest;
	int n;

	for (n = 0; n < chunks && length; n++) {
		if (length >= size) {
			rest = size;
			if (bpf_skb_load_bytes(ctx, offset, chunk, size))
				return -1;
		} else {
			__builtin_memset(chunk, 0, size);
			/* From 1 to `size`, in a form that verifiers before 6.2 understand. */
			rest = length - 1;
			OPAQUE(rest);
			rest = (rest & (size - 1)) + 1;
			if (bpf_skb_load_bytes(ctx, offset, chunk, rest))
				return -1;
		}
		*sum = bpf_csum_diff(NULL, 0, chunk, size, *sum);
		offset += rest;
		length -= rest;
	}
	return length ? -1 : 0;
}
#endif

/* Not inlined: it needs many registers, which callers would spill. */
static __noinline __u32 address_difference(const __be32 *from, const __be32 *to)
{
	return sum_difference(from, to, 4);
}

#define AF 4
#include "rewrite.inc.h"
#undef AF
#define AF 6
#include "rewrite.inc.h"
#undef AF

#endif /* PACKET_REWRITE_H */
