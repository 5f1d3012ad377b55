/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Checksums that are changed with what they cover are those that are made anew. */
#include "packet/checksum.h"

#include "check.h"

static __u16 checksum_of(const __u16 *words, int count)
{
	__u32 sum = 0;
	int n;

	for (n = 0; n < count; n++)
		sum += words[n];
	return fold_checksum(sum);
}

static __u32 random_word(void)
{
	static __u32 state = 2463534242U;

	state ^= state << 13;
	state ^= state >> 17;
	state ^= state << 5;
	return state;
}

static void follows_changes_of_words(void)
{
	int round;

	for (round = 0; round < 10000; round++) {
		union {
			__u16 half[8];
			__u32 whole[4];
		} packet;
		__u32 from, to = random_word();
		__u16 before, after;
		int n;

		for (n = 0; n < 4; n++)
			packet.whole[n] = random_word();
		before = checksum_of(packet.half, 8);
		from = packet.whole[round & 3];
		packet.whole[round & 3] = to;
		after = checksum_of(packet.half, 8);
		CHECK(checksum_replace(before, from, to) == after);
	}
}

static void follows_changes_of_ports(void)
{
	__u16 words[3] = {0x1234, 0xffff, 0x0050};
	__u16 before = checksum_of(words, 3);

	words[2] = 0x1f90;
	CHECK(checksum_replace(before, 0x0050, 0x1f90) == checksum_of(words, 3));
}

static void follows_changes_of_addresses(void)
{
	__u32 from[4] = {1, 2, 3, 0xffffffff}, to[4] = {0x01020304, 0, 0xffff0000, 7};
	__u16 before = checksum_of((const __u16 *)from, 8);

	CHECK(checksum_replace_all(before, from, to, sizeof(from)) ==
	      checksum_of((const __u16 *)to, 8));
}

static void sums_what_changes(void)
{
	__u32 from[4] = {1, 2, 3, 0xffffffff}, to[4] = {0x01020304, 0, 0xffff0000, 7};
	__u16 before = checksum_of((const __u16 *)from, 8);

	CHECK(checksum_add(before, sum_difference(from, to, 4)) ==
	      checksum_of((const __u16 *)to, 8));
	before = checksum_of((const __u16 *)to, 2);
	CHECK(checksum_add(before, sum_difference(to, from, 1)) ==
	      checksum_of((const __u16 *)from, 2));
}

int main(void)
{
	follows_changes_of_words();
	follows_changes_of_ports();
	follows_changes_of_addresses();
	sums_what_changes();
	return failures;
}
