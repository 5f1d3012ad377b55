/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Mapping of ICMP messages between address families (RFC 7915 4.2, 5.2). */
#ifndef NAT_ICMP46_RULES_H
#define NAT_ICMP46_RULES_H

#include "../packet/context.h"

enum icmp46 {
	ICMP46_NONE, /* the other family has none */
	ICMP46_ECHO,
	ICMP46_ERROR, /* with the packet that caused it */
};

/* Codes of "destination unreachable" of IPv6, by those of IPv4, one hexadecimal digit each from the
 * right: 0 no route, 1 prohibited, 4 no port; others are not "destination unreachable".
 */
#define ICMP46_UNREACHABLE 0x1f10011000034200ULL
#define ICMP46_NO_PROTOCOL 2
#define ICMP46_TOO_BIG 3
#define ICMP46_NO_CODE 0xf

static __always_inline void set_pointer6(struct icmp *icmp, __u32 pointer)
{
	icmp->id = bpf_htons(pointer >> 16);
	icmp->sequence = bpf_htons((__u16)pointer);
}

/* Translates an ICMPv4 header to ICMPv6, without checksum. */
static __always_inline enum icmp46 icmp46_map(struct icmp *icmp)
{
	__u32 code, mtu;
	__u8 pointer;

	switch (icmp->type) {
	case ICMP4_ECHO:
		icmp->type = ICMP6_ECHO;
		return ICMP46_ECHO;
	case ICMP4_ECHO_REPLY:
		icmp->type = ICMP6_ECHO_REPLY;
		return ICMP46_ECHO;
	case ICMP4_UNREACHABLE:
		if (icmp->code > 15)
			return ICMP46_NONE;
		mtu = bpf_ntohs(icmp->sequence) + (sizeof(struct ip6) - sizeof(struct ip4));
		code = ICMP46_UNREACHABLE >> (4 * icmp->code) & 0xf;
		switch (code) {
		case ICMP46_NO_CODE:
			return ICMP46_NONE;
		case ICMP46_TOO_BIG:
			icmp->type = ICMP6_TOO_BIG;
			icmp->code = 0;
			/* Also of routers that report no MTU (RFC 1191). */
			set_pointer6(icmp, mtu < 1280 ? 1280 : mtu);
			return ICMP46_ERROR;
		case ICMP46_NO_PROTOCOL:
			icmp->type = ICMP6_PARAMETER;
			icmp->code = 1;
			/* The next header. */
			set_pointer6(icmp, 6);
			return ICMP46_ERROR;
		default:
			icmp->type = ICMP6_UNREACHABLE;
			icmp->code = code;
			set_pointer6(icmp, 0);
			return ICMP46_ERROR;
		}
	case ICMP4_TIME_EXCEEDED:
		icmp->type = ICMP6_TIME_EXCEEDED;
		set_pointer6(icmp, 0);
		return ICMP46_ERROR;
	case ICMP4_PARAMETER:
		if (icmp->code != 0 && icmp->code != 2)
			return ICMP46_NONE;
		pointer = *(__u8 *)&icmp->id;
		icmp->type = ICMP6_PARAMETER;
		icmp->code = 0;
		if (pointer <= 1)
			set_pointer6(icmp, pointer);
		else if (pointer <= 3)
			set_pointer6(icmp, 4);
		else if (pointer == 8)
			set_pointer6(icmp, 7);
		else if (pointer == 9)
			set_pointer6(icmp, 6);
		else if (pointer >= 12 && pointer < 16)
			set_pointer6(icmp, 8);
		else if (pointer >= 16 && pointer < 20)
			set_pointer6(icmp, 24);
		else
			return ICMP46_NONE;
		return ICMP46_ERROR;
	}
	return ICMP46_NONE;
}

/* Translates an ICMPv6 header to ICMPv4, without checksum. */
static __always_inline enum icmp46 icmp64_map(struct icmp *icmp)
{
	__u32 number = (__u32)bpf_ntohs(icmp->id) << 16 | bpf_ntohs(icmp->sequence);

	switch (icmp->type) {
	case ICMP6_ECHO:
		icmp->type = ICMP4_ECHO;
		return ICMP46_ECHO;
	case ICMP6_ECHO_REPLY:
		icmp->type = ICMP4_ECHO_REPLY;
		return ICMP46_ECHO;
	case ICMP6_UNREACHABLE:
		if (icmp->code > 4)
			return ICMP46_NONE;
		icmp->type = ICMP4_UNREACHABLE;
		/* Host unreachable, host prohibited, no port. */
		icmp->code = icmp->code == 4 ? 3 : icmp->code == 1 ? 10 : 1;
		set_pointer6(icmp, 0);
		return ICMP46_ERROR;
	case ICMP6_TOO_BIG:
		icmp->type = ICMP4_UNREACHABLE;
		icmp->code = ICMP4_FRAGMENTATION_NEEDED;
		number = number > 0xffff ? 0xffff : number;
		set_pointer6(icmp, number < 1280
					   ? 1260
					   : number - (sizeof(struct ip6) - sizeof(struct ip4)));
		return ICMP46_ERROR;
	case ICMP6_TIME_EXCEEDED:
		icmp->type = ICMP4_TIME_EXCEEDED;
		set_pointer6(icmp, 0);
		return ICMP46_ERROR;
	case ICMP6_PARAMETER:
		if (icmp->code == 1) {
			icmp->type = ICMP4_UNREACHABLE;
			icmp->code = 2;
			set_pointer6(icmp, 0);
			return ICMP46_ERROR;
		}
		if (icmp->code)
			return ICMP46_NONE;
		icmp->type = ICMP4_PARAMETER;
		if (number <= 1)
			;
		else if (number == 4 || number == 5)
			number = 2;
		else if (number == 6)
			number = 9;
		else if (number == 7)
			number = 8;
		else if (number >= 8 && number < 24)
			number = 12;
		else if (number >= 24 && number < 40)
			number = 16;
		else
			return ICMP46_NONE;
		set_pointer6(icmp, number << 24);
		return ICMP46_ERROR;
	}
	return ICMP46_NONE;
}

/* Translates the header of a packet in an error, without addresses. Returns 0 if it cannot be
 * translated: options, fragments, ICMP errors.
 */
static __always_inline int icmp46_inner(const struct ip4 *from, struct ip6 *to)
{
	if (from->version_ihl != 0x45 || from->proto == IPPROTO_ICMP ||
	    (from->fragment & bpf_htons(IP4_FRAGMENT_OFFSET | IP4_MORE_FRAGMENTS)) ||
	    bpf_ntohs(from->length) < sizeof(*from))
		return 0;
	to->flow = bpf_htonl(6U << 28 | (__u32)from->tos << 20);
	to->length = bpf_htons(bpf_ntohs(from->length) - sizeof(*from));
	to->proto = from->proto;
	to->hop_limit = from->ttl;
	return 1;
}

/* The same for IPv6; without checksum. */
static __always_inline int icmp64_inner(const struct ip6 *from, struct ip4 *to)
{
	__u32 length = bpf_ntohs(from->length) + sizeof(*to);

	if (bpf_ntohl(from->flow) >> 28 != 6 || length > 0xffff ||
	    (from->proto != IPPROTO_TCP && from->proto != IPPROTO_UDP &&
	     from->proto != IPPROTO_SCTP))
		return 0;
	to->version_ihl = 0x45;
	to->tos = bpf_ntohl(from->flow) >> 20;
	to->length = bpf_htons(length);
	to->id = 0;
	to->fragment = bpf_htons(IP4_DONT_FRAGMENT);
	to->ttl = from->hop_limit;
	to->proto = from->proto;
	to->checksum = 0;
	return 1;
}

#endif /* NAT_ICMP46_RULES_H */
