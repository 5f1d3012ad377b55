/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Echo messages in fragments: the first one has type and id, which later ones need. They are
 * remembered when the program is done with the first one and lets it go on, so that no sender fills
 * the map with messages that are dropped.
 */
#ifndef PACKET_ECHO_H
#define PACKET_ECHO_H

#include "work.h"

#define AF 4
#include "echo.inc.h"
#undef AF
#define AF 6
#include "echo.inc.h"
#undef AF

static __noinline void remember_echo(const union work *work)
{
	if (work->v4.path.ipv6)
		map_update(&cilium_ipv6_frag_datagrams, &work->v6.message, &work->v6.echo, BPF_ANY);
	else
		map_update(&cilium_ipv4_frag_datagrams, &work->v4.message, &work->v4.echo, BPF_ANY);
}

/* Ends a program with a verdict, or less: a drop reason. */
static __always_inline int finish(CTX *ctx, union work *work, int verdict)
{
	/* The path is at the beginning for both address families. */
	const struct path *path = &work->v4.path;

	if (verdict < 0)
		return drop_packet(ctx, path, -verdict);
	if ((options.packet.fragments4 || options.packet.fragments6) && path->begins_echo)
		remember_echo(work);
	return verdict;
}

#endif /* PACKET_ECHO_H */
