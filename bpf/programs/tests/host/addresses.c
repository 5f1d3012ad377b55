/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Addresses of both families through the macros of common/af.h. */
#include <string.h>

#include "common/af.h"

#include "check.h"

#define AF 4
static void copies_ipv4(void)
{
	AF_ADDRESS(from) = bpf_htonl(0x0a000001);
	AF_ADDRESS(to);
	__be32 words[4] = {1, 2, 3, 4};

	AF_COPY(to, from);
	CHECK(AF_SAME(to, from));
	CHECK(AF_FIRST(to) == bpf_htonl(0x0a000001));
	AF_TO_WORDS(words, from);
	CHECK(words[0] == from && words[1] == 2 && words[3] == 4);
	AF_SET_LOOPBACK(to);
	CHECK(AF_FN(is_loopback)(to) && !AF_SAME(to, from));
	AF_ZERO(to);
	CHECK(to == 0 && AF_SIZE == sizeof(to));
}
#undef AF

#define AF 6
static void copies_ipv6(void)
{
	AF_ADDRESS(from) = {bpf_htonl(0xfd000000), 2, 3, 4};
	AF_ADDRESS(to);
	__be32 words[4] = {};
	int word;

	AF_COPY(to, from);
	CHECK(AF_SAME(to, from));
	/* Every word counts. */
	for (word = 0; word < 4; word++) {
		AF_COPY(to, from);
		to[word] ^= 1;
		CHECK(!AF_SAME(to, from));
	}
	AF_TO_WORDS(words, from);
	CHECK(!memcmp(words, from, sizeof(words)));
	AF_SET_LOOPBACK(to);
	CHECK(AF_FN(is_loopback)(to));
	CHECK(AF_FIRST(from) == bpf_htonl(0xfd000000));
	AF_ZERO(to);
	CHECK(!to[0] && !to[1] && !to[2] && !to[3] && AF_SIZE == sizeof(to));
}
#undef AF

static void knows_loopback_and_mapped_addresses(void)
{
	__be32 mapped[4] = {0, 0, bpf_htonl(0xffff), bpf_htonl(0x0a000001)};
	__be32 address[4];
	int word;

	CHECK(is_loopback4(bpf_htonl(0x7f000001)) && is_loopback4(bpf_htonl(0x7fffffff)));
	CHECK(!is_loopback4(bpf_htonl(0x80000001)) && !is_loopback4(0));
	CHECK(is_mapped4(mapped) && !is_loopback6(mapped));
	for (word = 0; word < 3; word++) {
		copy6(address, mapped);
		address[word] ^= bpf_htonl(1);
		CHECK(!is_mapped4(address));
		set_loopback6(address);
		address[word] = bpf_htonl(1);
		CHECK(!is_loopback6(address));
	}
	set_loopback6(address);
	address[3] = bpf_htonl(2);
	CHECK(!is_loopback6(address));
}

int main(void)
{
	copies_ipv4();
	copies_ipv6();
	knows_loopback_and_mapped_addresses();
	return failures;
}
