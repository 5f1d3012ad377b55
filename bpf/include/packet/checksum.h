/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Internet checksums. Pure: compile for the host, with unit tests in bpf/programs/tests/host. */
#ifndef PACKET_CHECKSUM_H
#define PACKET_CHECKSUM_H

#include "../common/compiler.h"

/* Updates a checksum after replacing `from` by `to` (RFC 1624). */
static __always_inline __u16 checksum_replace(__u16 checksum, __u32 from, __u32 to)
{
	__u64 sum = (__u16)~checksum;

	sum += (__u32)~from;
	sum += to;
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return ~sum;
}

/* Updates a checksum by a difference of sums. */
static __always_inline __u16 checksum_add(__u16 checksum, __u32 difference)
{
	return checksum_replace(checksum, ~0U, difference);
}

/* The same as checksum_replace() for several words. */
static __always_inline __u16 checksum_replace_all(__u16 checksum, const void *from, const void *to,
						  __u32 size)
{
	const __u32 *one = from, *other = to;
	__u32 n;

	for (n = 0; n < size / 4; n++)
		checksum = checksum_replace(checksum, one[n], other[n]);
	return checksum;
}

/* Difference of sums of words: as bpf_csum_diff(), which takes longer. */
static __always_inline __u32 sum_difference(const __u32 *from, const __u32 *to, __u32 words)
{
	__u64 sum = 0;
	__u32 n;

	for (n = 0; n < words; n++)
		sum += (__u64)(__u32)~from[n] + to[n];
	sum = (__u32)sum + (sum >> 32);
	return (__u32)sum + (sum >> 32);
}

/* Folds a sum to a checksum. */
static __always_inline __u16 fold_checksum(__u32 sum)
{
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return ~sum;
}

#endif /* PACKET_CHECKSUM_H */
