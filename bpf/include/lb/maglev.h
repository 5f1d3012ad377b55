/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Maglev tables: service id to an array of backend ids. Rust twin: bpf/maps/src/lb/specs.rs */
#ifndef LB_MAGLEV_H
#define LB_MAGLEV_H

#include "../common/af.h"
#include "../common/map.h"

#define AF 4
#include "maglev.inc.h"
#undef AF
#define AF 6
#include "maglev.inc.h"
#undef AF

#endif /* LB_MAGLEV_H */
