/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Skip maps: network namespaces that reach a service untranslated. Rust twin:
 * bpf/maps/src/lb/reverse.rs */
#ifndef LB_SKIP_H
#define LB_SKIP_H

#include "../common/af.h"
#include "../common/map.h"

#define AF 4
#include "skip.inc.h"
#undef AF
#define AF 6
#include "skip.inc.h"
#undef AF

#endif /* LB_SKIP_H */
