/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Packets at devices of the node: services for clients outside, masquerade. */
#ifndef PACKET_HOST_H
#define PACKET_HOST_H

#include "dsr.h"
#include "../nat/ip_masq.h"
#include "forward.h"
#include "ipip.h"
#include "nodeport.h"

/* Identity in the mark of an egress packet; 0: none. */
static __always_inline __u32 marked_identity(__u32 mark)
{
	switch (mark & MARK_MASK) {
	case MARK_HOST:
	case MARK_OVERLAY:
	case MARK_ENCRYPT:
		return IDENTITY_HOST;
	case MARK_EGRESS_PROXY:
	case MARK_IDENTITY:
	case MARK_EGRESS_GATEWAY:
		return identity_of_mark(mark);
	}
	return 0;
}

/* Identity in the mark of a packet to a pod; 0: none. */
static __always_inline __u32 sender_of_mark(__u32 mark)
{
	switch (mark & MARK_MASK) {
	case MARK_HOST:
		return IDENTITY_HOST;
	case MARK_INGRESS_PROXY:
	case MARK_EGRESS_PROXY:
	case MARK_IDENTITY:
		return identity_of_mark(mark);
	}
	return 0;
}

static __always_inline int is_from_proxy(__u32 mark)
{
	return (mark & MARK_MASK) == MARK_INGRESS_PROXY || (mark & MARK_MASK) == MARK_EGRESS_PROXY;
}

/* The mark's identity for the host firewall. What a proxy sends for the node is not for the proxy.
 */
static __always_inline __u32 filtered_identity(__u32 mark, __u32 identity)
{
	return is_from_proxy(mark) && identity == IDENTITY_HOST ? IDENTITY_WORLD : identity;
}

/* Origin of a packet with this mark from the stack. */
static __always_inline enum delivery delivery_from_stack(__u32 mark)
{
	if ((mark & MARK_MASK) == MARK_EGRESS_PROXY)
		return FROM_EGRESS_PROXY;
	return (mark & MARK_MASK) == MARK_INGRESS_PROXY ? FROM_INGRESS_PROXY : FROM_HOST;
}

/* Whether a socket of the node sent the packet. That of a connection request is not a full one. */
static __always_inline int has_socket(CTX *ctx)
{
	struct bpf_sock *socket = ctx->sk;
	struct bpf_sock *full;

	if (!socket)
		return 0;
	full = bpf_sk_fullsock(socket);
	return !full || full->protocol;
}

/* Identities below are reserved. */
#define IDENTITY_FIRST_ALLOCATED 256

static __always_inline void mark_snat_done(CTX *ctx)
{
	ctx->mark = (ctx->mark & ~MARK_MASK) | MARK_SNAT_DONE;
}

/* Metadata of the XDP program; 0 without one or without room. */
static __always_inline __u32 xdp_metadata(CTX *ctx)
{
	const __u32 *metadata;

	if (!options.packet.xdp || FROM_TUNNEL)
		return 0;
	metadata = PACKET_BOUND(ctx, data_meta);
	OPAQUE(metadata);
	return (void *)(metadata + 1) > PACKET_BOUND(ctx, data) ? 0 : *metadata;
}

#define AF 4
#include "refuse.inc.h"
#include "dsr_host.inc.h"
#include "nodeport_tc.inc.h"
#include "reverse.inc.h"
#include "masquerade.inc.h"
#include "host_identity.inc.h"
#include "host.inc.h"
#undef AF
#define AF 6
#include "refuse.inc.h"
#include "dsr_host.inc.h"
#include "nodeport_tc.inc.h"
#include "reverse.inc.h"
#include "masquerade.inc.h"
#include "host_identity.inc.h"
#include "host.inc.h"
#undef AF

#endif /* PACKET_HOST_H */
