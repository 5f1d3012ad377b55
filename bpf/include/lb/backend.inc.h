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
_Static_assert(sizeof(struct AF_JOIN(lb, _backend)) == AF_SIZE + 8, "backend layout");
_Static_assert(__builtin_offsetof(struct AF_JOIN(lb, _backend), flags) == AF_SIZE + 3,
	       "backend.flags");
_Static_assert(__builtin_offsetof(struct AF_JOIN(lb, _backend), zone) == AF_SIZE + 6,
	       "backend.zone");

MAP(AF_JOIN(cilium_lb, _backends_v3), BPF_MAP_TYPE_HASH, __u32, struct AF_JOIN(lb, _backend));
