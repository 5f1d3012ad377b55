/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Backend map of one address family. */

struct AF_JOIN(lb, _backend) {
	AF_ADDRESS(address);
	__be16 port;
	__u8 proto;
	__u8 flags;	  /* enum lb_backend_state */
	__u16 cluster_id; /* 0 = this cluster */
	__u8 zone;
	__u8 pad;
};
_Static_assert(sizeof(lb_backend_t) == AF_SIZE + 8, "backend layout");
_Static_assert(__builtin_offsetof(lb_backend_t, flags) == AF_SIZE + 3, "backend.flags");
_Static_assert(__builtin_offsetof(lb_backend_t, zone) == AF_SIZE + 6, "backend.zone");

MAP(AF_JOIN(cilium_lb, _backends_v3), BPF_MAP_TYPE_HASH, __u32, lb_backend_t);
