/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Translation of calls: service to backend and back, for both address families. */
#ifndef SOCKET_TRANSLATE_H
#define SOCKET_TRANSLATE_H

#include "../lb/lookup.h"
#include "common.h"

/* Maps of the family that AF names. */
#define BACKENDS AF_JOIN(cilium_lb, _backends_v3)
#define AFFINITIES AF_JOIN(cilium_lb, _affinity)
#define REVERSE_SK AF_JOIN(cilium_lb, _reverse_sk)
#define SKIP AF_FN(cilium_skip_lb)

#define AF 4
#include "translate.inc.h"
#undef AF
#define AF 6
#include "translate.inc.h"
#undef AF

#endif /* SOCKET_TRANSLATE_H */
