/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Addresses of sockets, as words in network order. */
#ifndef SOCKET_ADDRESS_H
#define SOCKET_ADDRESS_H

#include <linux/types.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define AF_INET 2
#define AF_INET6 10

static __always_inline void copy6(__be32 *to, const __be32 *from)
{
	to[0] = from[0];
	to[1] = from[1];
	to[2] = from[2];
	to[3] = from[3];
}

static __always_inline int same6(const __be32 *one, const __be32 *other)
{
	return one[0] == other[0] && one[1] == other[1] && one[2] == other[2] && one[3] == other[3];
}

static __always_inline int loopback4(__be32 address)
{
	return (address & bpf_htonl(0xff000000)) == bpf_htonl(0x7f000000);
}

static __always_inline int loopback6(const __be32 *address)
{
	return !address[0] && !address[1] && !address[2] && address[3] == bpf_htonl(1);
}

/* An IPv4 address in an IPv6 socket: ::ffff:a.b.c.d */
static __always_inline int mapped4(const __be32 *address)
{
	return !address[0] && !address[1] && address[2] == bpf_htonl(0xffff);
}

#endif /* SOCKET_ADDRESS_H */
