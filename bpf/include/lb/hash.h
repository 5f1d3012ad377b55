/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Packet hashes for Maglev tables: Jenkins' lookup3 as in the kernel's jhash.h, so that all nodes
 * of a cluster select the same backend. Pure: compile for the host, with unit tests in
 * bpf/programs/tests/host.
 */
#ifndef LB_HASH_H
#define LB_HASH_H

#include "../common/compiler.h"

#define JHASH_INITVAL 0xdeadbeef

static __always_inline __u32 rotate_left(__u32 word, __u32 bits)
{
	return word << bits | word >> (32 - bits);
}

static __always_inline void jhash_mix(__u32 w[3])
{
	w[0] -= w[2], w[0] ^= rotate_left(w[2], 4), w[2] += w[1];
	w[1] -= w[0], w[1] ^= rotate_left(w[0], 6), w[0] += w[2];
	w[2] -= w[1], w[2] ^= rotate_left(w[1], 8), w[1] += w[0];
	w[0] -= w[2], w[0] ^= rotate_left(w[2], 16), w[2] += w[1];
	w[1] -= w[0], w[1] ^= rotate_left(w[0], 19), w[0] += w[2];
	w[2] -= w[1], w[2] ^= rotate_left(w[1], 4), w[1] += w[0];
}

static __always_inline void jhash_final(__u32 w[3])
{
	w[2] ^= w[1], w[2] -= rotate_left(w[1], 14);
	w[0] ^= w[2], w[0] -= rotate_left(w[2], 11);
	w[1] ^= w[0], w[1] -= rotate_left(w[0], 25);
	w[2] ^= w[1], w[2] -= rotate_left(w[1], 16);
	w[0] ^= w[2], w[0] -= rotate_left(w[2], 4);
	w[1] ^= w[0], w[1] -= rotate_left(w[0], 14);
	w[2] ^= w[1], w[2] -= rotate_left(w[1], 24);
}

static __always_inline __u32 hash_ports(__be16 sport, __be16 dport)
{
	return (__u32)dport << 16 | sport;
}

/* The destination is not part of it: a node port is on all nodes. Ports in network order. */
static __always_inline __u32 packet_hash4(__be32 source, __be16 sport, __be16 dport, __u8 proto,
					  __u32 seed)
{
	__u32 start = JHASH_INITVAL + (3 << 2) + seed;
	__u32 words[3] = {start + source, start + hash_ports(sport, dport), start + proto};

	jhash_final(words);
	return words[2];
}

static __always_inline __u32 packet_hash6(const __be32 *source, __be16 sport, __be16 dport,
					  __u8 proto, __u32 seed)
{
	__u32 words[3] = {source[0], source[1], source[2]};

	jhash_mix(words);
	words[0] += source[3];
	words[1] += hash_ports(sport, dport);
	words[2] += proto;
	jhash_mix(words);
	words[0] += seed;
	jhash_final(words);
	return words[2];
}

#endif /* LB_HASH_H */
