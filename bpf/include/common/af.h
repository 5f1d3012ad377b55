/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* One text for IPv4 and IPv6. A file `*.inc.h` is written against the macros below and included
 * twice, with AF defined as 4 and as 6:
 *
 *	#define AF 4
 *	#include "service.inc.h"
 *	#undef AF
 *	#define AF 6
 *	#include "service.inc.h"
 *	#undef AF
 *
 * Addresses are words in network byte order: `__be32` for IPv4, `__be32[4]` for IPv6.
 */
#ifndef COMMON_AF_H
#define COMMON_AF_H

#include "compiler.h"

#define AF_INET 2
#define AF_INET6 10

#define AF_PASTE_(one, other) one##other
#define AF_PASTE(one, other) AF_PASTE_(one, other)

/* Function or type of this family: AF_FN(master) is master4. */
#define AF_FN(name) AF_PASTE(name, AF)
/* Struct or map of this family: AF_JOIN(lb, _service_key) is lb4_service_key. */
#define AF_JOIN(before, after) AF_PASTE(AF_PASTE(before, AF), after)

/* Types of this family. */
#define scratch_t struct AF_FN(scratch)
#define packet_t struct AF_FN(packet)
#define ip_t struct AF_FN(ip)
#define call_t struct AF_FN(call)
#define ct_key_t struct AF_FN(ct_key)
#define nat_key_t struct AF_FN(nat_key)
#define nat_entry_t struct AF_FN(nat_entry)
#define nat_target_t struct AF_FN(nat_target)
#define dsr_option_t struct AF_FN(dsr_option)
#define flow_t struct AF_FN(flow)
#define flow_key_t struct AF_FN(flow_key)
#define fragment_key_t struct AF_FN(fragment_key)
#define ip_masq_key_t struct AF_FN(ip_masq_key)
#define neighbour_key_t struct AF_FN(neighbour_key)
#define lb_backend_t struct AF_JOIN(lb, _backend)
#define lb_service_key_t struct AF_JOIN(lb, _service_key)
#define lb_reverse_nat_t struct AF_JOIN(lb, _reverse_nat)
#define lb_reverse_sk_t struct AF_JOIN(lb, _reverse_sk)
#define lb_reverse_sk_key_t struct AF_JOIN(lb, _reverse_sk_key)
#define lb_skip_key_t struct AF_JOIN(lb, _skip_key)
#define lb_affinity_key_t struct AF_JOIN(lb, _affinity_key)
#define lb_source_range_key_t struct AF_JOIN(lb, _source_range_key)

#define AF_SIZE AF_PASTE(AF_SIZE, AF)
#define AF_SIZE4 4
#define AF_SIZE6 16

/* Declares an address: field of a struct, or local variable. */
#define AF_ADDRESS(name) AF_PASTE(AF_ADDRESS, AF)(name)
#define AF_ADDRESS4(name) __be32 name
#define AF_ADDRESS6(name) __be32 name[4]

/* Type of a parameter that takes an address. */
#define AF_ADDRESS_IN AF_PASTE(AF_ADDRESS_IN, AF)
#define AF_ADDRESS_IN4 __be32
#define AF_ADDRESS_IN6 const __be32 *

#define AF_COPY(to, from) AF_PASTE(AF_COPY, AF)(to, from)
#define AF_COPY4(to, from) ((to) = (from))
#define AF_COPY6(to, from) copy6(to, from)

#define AF_SAME(one, other) AF_PASTE(AF_SAME, AF)(one, other)
#define AF_SAME4(one, other) ((one) == (other))
#define AF_SAME6(one, other) same6(one, other)

#define AF_ZERO(address) AF_PASTE(AF_ZERO, AF)(address)
#define AF_ZERO4(address) ((address) = 0)
#define AF_ZERO6(address) __builtin_memset(address, 0, 16)

#define AF_SET_LOOPBACK(address) AF_PASTE(AF_SET_LOOPBACK, AF)(address)
#define AF_SET_LOOPBACK4(address) ((address) = bpf_htonl(0x7f000001))
#define AF_SET_LOOPBACK6(address) set_loopback6(address)

/* First word of an address, or of a field that has as many words of another size. */
#define AF_FIRST(field) AF_PASTE(AF_FIRST, AF)(field)
#define AF_FIRST4(field) (field)
#define AF_FIRST6(field) ((field)[0])

/* Last word of an address. */
#define AF_LAST(address) AF_PASTE(AF_LAST, AF)(address)
#define AF_LAST4(address) (address)
#define AF_LAST6(address) ((address)[3])

/* Copies into four words that hold either family; the other words of IPv4 stay as they are. */
#define AF_TO_WORDS(words, address) AF_PASTE(AF_TO_WORDS, AF)(words, address)
#define AF_TO_WORDS4(words, address) ((words)[0] = (address))
#define AF_TO_WORDS6(words, address) copy6(words, address)

/* Copies from four words with IPv4 in the last one. */
#define AF_FROM_WORDS(address, words) AF_PASTE(AF_FROM_WORDS, AF)(address, words)
#define AF_FROM_WORDS4(address, words) ((address) = (words)[3])
#define AF_FROM_WORDS6(address, words) copy6(address, words)

/* Address in options.packet: AF_OPTION(loopback) is loopback4 or loopback6. */
#define AF_OPTION(name) AF_PASTE(AF_OPTION, AF)(name)
#define AF_OPTION4(name) options.packet.name##4
#define AF_OPTION6(name) packet_options()->name##6

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

static __always_inline void set_loopback6(__be32 *address)
{
	address[0] = 0;
	address[1] = 0;
	address[2] = 0;
	address[3] = bpf_htonl(1);
}

static __always_inline int is_loopback4(__be32 address)
{
	return (address & bpf_htonl(0xff000000)) == bpf_htonl(0x7f000000);
}

static __always_inline int is_loopback6(const __be32 *address)
{
	return !address[0] && !address[1] && !address[2] && address[3] == bpf_htonl(1);
}

/* fe80::/10 */
static __always_inline int is_link_local(const __be32 *address)
{
	return (address[0] & bpf_htonl(0xffc00000)) == bpf_htonl(0xfe800000);
}

/* ff02::/16 */
static __always_inline int is_link_multicast(const __be32 *address)
{
	return (address[0] & bpf_htonl(0xffff0000)) == bpf_htonl(0xff020000);
}

/* An IPv4 address in an IPv6 socket: ::ffff:a.b.c.d (RFC 4291 2.5.5.2) */
static __always_inline int is_mapped4(const __be32 *address)
{
	return !address[0] && !address[1] && address[2] == bpf_htonl(0xffff);
}

#endif /* COMMON_AF_H */
