/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Which sockets talk to backends of services: the maps that socket termination shares with
 * translation. Sizes as in lb/maps.h.
 */
#ifndef LB_REVERSE_MAPS_H
#define LB_REVERSE_MAPS_H

#include "map.h"
#include "reverse.h"

LB_MAP(cilium_lb4_reverse_sk, BPF_MAP_TYPE_LRU_HASH, struct lb4_reverse_sk_key,
       struct lb4_reverse_sk, 262144, 0);
LB_MAP(cilium_lb6_reverse_sk, BPF_MAP_TYPE_LRU_HASH, struct lb6_reverse_sk_key,
       struct lb6_reverse_sk, 262144, 0);

#endif /* LB_REVERSE_MAPS_H */
