/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* DNAT of packets to services: backend selection and conntrack. */
#ifndef PACKET_SERVICE_H
#define PACKET_SERVICE_H

#include "../conntrack/track.h"
#include "../lb/backend.h"
#include "../lb/hash.h"
#include "../lb/lookup.h"
#include "../lb/maglev.h"
#include "../lb/reverse_nat.h"
#include "../lb/source_range.h"
#include "../lb/sticky.h"
#include "../nat/translate.h"
#include "mode.h"
#include "rewrite.h"
#include "scratch.h"

#define BACKENDS AF_JOIN(cilium_lb, _backends_v3)
#define AFFINITIES AF_JOIN(cilium_lb, _affinity)
#define TABLES AF_JOIN(cilium_lb, _maglev)
#define REVERSE_NAT AF_JOIN(cilium_lb, _reverse_nat)

/* Result, no drop reason: reject the connection. */
#define REFUSE 1001

#define AF 4
#include "service.inc.h"
#include "collision.inc.h"
#undef AF
#define AF 6
#include "service.inc.h"
#include "collision.inc.h"
#undef AF

#endif /* PACKET_SERVICE_H */
