/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Source ranges of services. Rust twin: bpf/maps/src/lb/source_range.rs */
#ifndef LB_SOURCE_RANGE_H
#define LB_SOURCE_RANGE_H

#include "../common/af.h"
#include "../common/map.h"

#define AF 4
#include "source_range.inc.h"
#undef AF
#define AF 6
#include "source_range.inc.h"
#undef AF

#endif /* LB_SOURCE_RANGE_H */
