/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Probed backends of one address family. The key is the cookie of a socket; of the value, address,
 * port and protocol are set.
 */
MAP(AF_JOIN(cilium_lb, _health), BPF_MAP_TYPE_LRU_HASH, __u64, lb_backend_t);
