/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Packet context: headers, bounds, marks, verdicts. Objects of XDP programs define PACKET_XDP
 * before any include.
 */
#ifndef PACKET_CONTEXT_H
#define PACKET_CONTEXT_H

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/in6.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_helpers.h>

#include "../common/af.h"

/* Context of a program. */
#ifdef PACKET_XDP
#define CTX struct xdp_md
#define DROPPED XDP_DROP
#else
#define CTX struct __sk_buff
#define DROPPED TC_ACT_SHOT
#endif

/* What functions decide about a packet: a verdict of the kernel (TC_ACT_*, XDP_*), one of these, or
 * less: a negative drop reason.
 */
enum verdict {
	NOT_HANDLED = 0,	  /* the caller continues */
	TO_STACK = TC_ACT_PIPE,	  /* handled, and routed by the kernel */
	XDP_DONE = 100,		  /* of XDP: translated, or not a service; tc skips the lookup */
	CONTINUE_AS_IPV6 = 0x100, /* translated: as if just received */
	ROUTE_AS_IPV6 = 0x101,	  /* translated: to its next hop */
	CONTINUE_AS_IPV4 = 0x102, /* translated: to its receiver */
	REDIRECT_BACK = 0x103,	  /* a reply to the sender, by the tunnel */
};

/* Global function: verified once, for any arguments of their types. */
#define GLOBAL __attribute__((noinline))

/* Set in the object of programs at the tunnel device. */
#ifdef PACKET_OVERLAY
#define FROM_TUNNEL 1
#else
#define FROM_TUNNEL 0
#endif

struct ethernet {
	__u8 destination[6];
	__u8 source[6];
	__be16 type;
};
_Static_assert(sizeof(struct ethernet) == 14, "ethernet layout");

struct ip4 {
	__u8 version_ihl;
	__u8 tos;
	__be16 length; /* with this header */
	__be16 id;
	__be16 fragment;
	__u8 ttl;
	__u8 proto;
	__u16 checksum;
	__be32 source;
	__be32 destination;
};

struct ip6 {
	__be32 flow;   /* version, traffic class, label */
	__be16 length; /* without this header */
	__u8 proto;
	__u8 hop_limit;
	__be32 source[4];
	__be32 destination[4];
};

struct tcp {
	__be16 source;
	__be16 destination;
	__be32 sequence;
	__be32 acknowledgement;
	__u8 offset;
	__u8 flags;
	__be16 window;
	__u16 checksum;
	__be16 urgent;
};

struct udp {
	__be16 source;
	__be16 destination;
	__be16 length;
	__u16 checksum;
};

struct sctp {
	__be16 source;
	__be16 destination;
	__be32 tag;
	__le32 checksum; /* of the whole packet, without addresses */
};

struct icmp {
	__u8 type;
	__u8 code;
	__u16 checksum;
	__be16 id; /* of echo messages */
	__be16 sequence;
};

#define TCP_FIN 1
#define TCP_SYN 2
#define TCP_RST 4
#define TCP_ACK 16

#define IP4_DONT_FRAGMENT 0x4000
#define IP4_MORE_FRAGMENTS 0x2000
#define IP4_FRAGMENT_OFFSET 0x1fff

#define ICMP4_ECHO_REPLY 0
#define ICMP4_UNREACHABLE 3
#define ICMP4_REDIRECT 5
#define ICMP4_ECHO 8
#define ICMP4_TIME_EXCEEDED 11
#define ICMP4_PARAMETER 12
#define ICMP4_FRAGMENTATION_NEEDED 4 /* code of "unreachable" */
#define ICMP4_PORT_UNREACHABLE 3     /* code of "unreachable" */

#define ICMP6_UNREACHABLE 1
#define ICMP6_TOO_BIG 2
#define ICMP6_TIME_EXCEEDED 3
#define ICMP6_PARAMETER 4
#define ICMP6_ECHO 128
#define ICMP6_ECHO_REPLY 129
#define ICMP6_SOLICITATION 135
#define ICMP6_LISTENER_REPORT 143 /* version 2, RFC 3810 */
#define ICMP6_ADVERTISEMENT 136
#define ICMP6_PORT_UNREACHABLE 4 /* code of "unreachable" */

/* skb->mark; the upper 16 bits of some carry an identity */
#define MARK_MASK 0x0f00
#define MARK_TO_PROXY 0x0200 /* the upper 16 bits are its port */
#define MARK_SNAT_DONE 0x0300
#define MARK_OVERLAY 0x0400
#define MARK_EGRESS_GATEWAY 0x0500
#define MARK_PROXY_TO_WORLD 0x0800
#define MARK_INGRESS_PROXY 0x0a00
#define MARK_EGRESS_PROXY 0x0b00
#define MARK_HOST 0x0c00
#define MARK_DECRYPTED 0x0d00
#define MARK_ENCRYPT 0x0e00
#define MARK_IDENTITY 0x0f00

/* Low 16 bits of the identity in the upper half, its cluster bits in the lowest byte. */
static __always_inline __u32 mark_with_identity(__u32 mark, __u32 identity)
{
	return (identity & 0xffff) << 16 | (mark & 0xff00) | ((identity >> 16) & 0xff);
}

static __always_inline __u32 identity_of_mark(__u32 mark)
{
	return (mark & 0xff) << 16 | mark >> 16;
}

/* Reads data, data_end or data_meta. They are 32-bit integers in C, which compilers extend with an
 * instruction that the verifier does not accept for pointers.
 */
#define PACKET_BOUND(ctx_, field_)                                                                 \
	({                                                                                         \
		void *bound_;                                                                      \
		asm volatile("%0 = *(u32 *)(%1 + %2)"                                              \
			     : "=r"(bound_)                                                        \
			     : "r"(ctx_), "i"(__builtin_offsetof(CTX, field_)));                   \
		bound_;                                                                            \
	})

/* Length of the packet, including fragments of the skb. */
static __always_inline __u32 packet_length(CTX *ctx)
{
#ifdef PACKET_XDP
	long length = PACKET_BOUND(ctx, data_end) - PACKET_BOUND(ctx, data);

	/* The difference of pointers, not of their halves. */
	OPAQUE(length);
	return length;
#else
	return ctx->len;
#endif
}

/* Interface of the program. */
static __always_inline __u32 packet_interface(CTX *ctx)
{
#ifdef PACKET_XDP
	return ctx->ingress_ifindex;
#else
	return ctx->ifindex;
#endif
}

/* Returns `size` contiguous bytes of the packet at `offset`; NULL if it is shorter. */
static __always_inline void *packet_bytes(CTX *ctx, __u32 offset, __u32 size)
{
	void *at, *end = PACKET_BOUND(ctx, data_end);

	/* The verifier bounds no pointers that may be 64 KiB off. */
	offset &= 0x3fff;
	at = PACKET_BOUND(ctx, data) + offset;
	/* What is compared is what is used. */
	OPAQUE(at);
	if (LIKELY(at + size <= end))
		return at;
#ifndef PACKET_XDP
	if (!bpf_skb_pull_data(ctx, offset + size)) {
		at = PACKET_BOUND(ctx, data) + offset;
		end = PACKET_BOUND(ctx, data_end);
		OPAQUE(at);
		if (at + size <= end)
			return at;
	}
#endif
	return NULL;
}

/* Copies `size` bytes, a constant, from `offset` of the packet. Returns 0, or less if it is
 * shorter.
 */
static __always_inline long packet_load(CTX *ctx, __u32 offset, void *to, __u32 size)
{
#ifdef PACKET_XDP
	const void *from = packet_bytes(ctx, offset, size);

	if (!from)
		return -1;
	__builtin_memcpy(to, from, size);
	return 0;
#else
	return bpf_skb_load_bytes(ctx, offset, to, size);
#endif
}

/* Copies `size` bytes, a constant, to `offset` of the packet. Returns 0, or less if it is shorter.
 */
static __always_inline long packet_store(CTX *ctx, __u32 offset, const void *from, __u32 size)
{
#ifdef PACKET_XDP
	void *to = packet_bytes(ctx, offset, size);

	if (!to)
		return -1;
	__builtin_memcpy(to, from, size);
	return 0;
#else
	return bpf_skb_store_bytes(ctx, offset, from, size, 0);
#endif
}

/* Ethertype; 0 if the frame is too short. */
static __always_inline __be16 ether_type(CTX *ctx)
{
	const struct ethernet *ethernet = packet_bytes(ctx, 0, sizeof(*ethernet));

	return ethernet ? ethernet->type : 0;
}

static __always_inline void copy_mac(__u8 *to, const __u8 *from)
{
	__builtin_memcpy(to, from, 6);
}

#endif /* PACKET_CONTEXT_H */
