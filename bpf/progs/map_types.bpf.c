/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Every pinned map and nothing else: the BTF of this object describes keys and values of all map
 * families, for the kernel (names of fields in dumps) and for the tests of their Rust twins.
 */
#include "conntrack/conntrack.h"
#include "endpoint/endpoint.h"
#include "endpoint/policy.h"
#include "event/events.h"
#include "event/metrics.h"
#include "event/ratelimit.h"
#include "event/signal.h"
#include "event/socket_trace.h"
#include "flow/flow.h"
#include "lb/affinity.h"
#include "lb/backend.h"
#include "lb/health.h"
#include "lb/ids.h"
#include "lb/maglev.h"
#include "lb/reverse_nat.h"
#include "lb/reverse_sk.h"
#include "lb/service.h"
#include "lb/skip.h"
#include "lb/source_range.h"
#include "nat/ip_masq.h"
#include "nat/nat.h"
#include "node/ipcache.h"
#include "node/neighbour.h"
#include "node/node_ids.h"
#include "node/throttle.h"
#include "packet/fragment.h"

/* The policy of an endpoint, which programs find by skep_policies. */
MAP(cilium_policy_v2, BPF_MAP_TYPE_LPM_TRIE, struct policy_key, struct policy_entry);

char LICENSE[] SEC("license") = "Dual BSD/GPL";
