/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* nonMasqueradeCIDRs of the ip-masq-agent. Rust twin: bpf/maps/src/ip_masq.rs */
#ifndef NAT_IP_MASQ_H
#define NAT_IP_MASQ_H

#include "../common/af.h"
#include "../common/map.h"

#define AF 4
#include "ip_masq.inc.h"
#undef AF
#define AF 6
#include "ip_masq.inc.h"
#undef AF

#endif /* NAT_IP_MASQ_H */
