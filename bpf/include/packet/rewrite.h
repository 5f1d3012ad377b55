/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Changes addresses, ports and hop limits of packets, with their checksums. */
#ifndef PACKET_REWRITE_H
#define PACKET_REWRITE_H

#include "checksum.h"
#include "packet.h"

#define TCP_CHECKSUM 16
#define UDP_CHECKSUM 6
#define ICMP_CHECKSUM 2

enum side {
	SOURCE,
	DESTINATION,
};

#define AF 4
#include "rewrite.inc.h"
#undef AF
#define AF 6
#include "rewrite.inc.h"
#undef AF

#endif /* PACKET_REWRITE_H */
