/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Finds and makes the entries of flows. */
#ifndef CONNTRACK_TRACK_H
#define CONNTRACK_TRACK_H

#include "../event/packet_event.h"
#include "../node/clock.h"
#include "../packet/work.h"
#include "state.h"

#define AF 4
#include "track.inc.h"
#undef AF
#define AF 6
#include "track.inc.h"
#undef AF

#endif /* CONNTRACK_TRACK_H */
