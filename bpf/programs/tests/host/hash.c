/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Hashes of packets are those of all nodes. */
#include "lb/hash.h"

#include "check.h"

#include <string.h>

/* lookup3.c of Bob Jenkins has this text and what it hashes to. */
static __u32 jenkins(__u32 initval)
{
	const char *text = "Four score and seven years ago";
	__u32 length = strlen(text), w[3], chunk[3];

	w[0] = w[1] = w[2] = JHASH_INITVAL + length + initval;
	while (length > 12) {
		memcpy(chunk, text, 12);
		w[0] += chunk[0], w[1] += chunk[1], w[2] += chunk[2];
		jhash_mix(w);
		text += 12;
		length -= 12;
	}
	memset(chunk, 0, sizeof(chunk));
	memcpy(chunk, text, length);
	w[0] += chunk[0], w[1] += chunk[1], w[2] += chunk[2];
	jhash_final(w);
	return w[2];
}

static void mixes_as_lookup3(void)
{
	CHECK(jenkins(0) == 0x17770551);
	CHECK(jenkins(1) == 0xcd628161);
}

static void knows_packets_by_source_and_ports(void)
{
	const __be32 one[4] = {bpf_htonl(0xfd000030), 0, 0, bpf_htonl(3)};
	const __be32 other[4] = {bpf_htonl(0xfd000030), 0, 0, bpf_htonl(4)};
	__be32 client = bpf_htonl(0xac1e0003);
	__be16 port = bpf_htons(80);
	__u32 of4 = packet_hash4(client, 1, port, 6, 7), of6 = packet_hash6(one, 1, port, 6, 7);

	CHECK(of4 == packet_hash4(client, 1, port, 6, 7));
	CHECK(of4 != packet_hash4(client, 2, port, 6, 7));
	CHECK(of4 != packet_hash4(client, 1, port, 17, 7));
	CHECK(of4 != packet_hash4(client, 1, port, 6, 8));
	CHECK(of4 != packet_hash4(client + 1, 1, port, 6, 7));
	CHECK(of6 == packet_hash6(one, 1, port, 6, 7));
	CHECK(of6 != packet_hash6(other, 1, port, 6, 7));
	CHECK(of6 != packet_hash6(one, 2, port, 6, 7));
	CHECK(of6 != packet_hash6(one, 1, port, 17, 7));
	CHECK(of6 != packet_hash6(one, 1, port, 6, 8));
}

int main(void)
{
	mixes_as_lookup3();
	knows_packets_by_source_and_ports();
	return failures;
}
