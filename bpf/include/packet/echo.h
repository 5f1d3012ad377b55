/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Fragmented echo messages: type and id of the first fragment are stored for later ones once the
 * packet is forwarded, so that dropped messages do not fill the map.
 */
#ifndef PACKET_ECHO_H
#define PACKET_ECHO_H

#include "scratch.h"

#define AF 4
#include "echo.inc.h"
#undef AF
#define AF 6
#include "echo.inc.h"
#undef AF

static __noinline void store_echo(const union scratch *scratch)
{
	if (scratch->v4.trace.ipv6)
		map_update(&cilium_ipv6_frag_datagrams, &scratch->v6.message, &scratch->v6.echo,
			   BPF_ANY);
	else
		map_update(&cilium_ipv4_frag_datagrams, &scratch->v4.message, &scratch->v4.echo,
			   BPF_ANY);
}

/* Returns a verdict to the kernel. */
static __always_inline int finish(CTX *ctx, union scratch *scratch, int verdict)
{
	/* The trace context is the first member of both address families. */
	const struct trace_ctx *trace = &scratch->v4.trace;

	if (verdict < 0)
		return drop_packet(ctx, trace, -verdict);
	if ((options.packet.fragments4 || options.packet.fragments6) && trace->begins_echo)
		store_echo(scratch);
	return verdict;
}

#endif /* PACKET_ECHO_H */
