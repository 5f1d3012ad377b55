/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Skip map of one address family. */

struct AF_JOIN(lb, _skip_key) {
	__u64 netns_cookie;
	AF_ADDRESS(address);
#if AF == 6
	__u32 pad;
	__be16 port;
	__u16 pad2;
#else
	__be16 port;
	__u16 pad;
#endif
};
_Static_assert(sizeof(lb_skip_key_t) == (AF == 4 ? 16 : 32), "skip_key layout");
_Static_assert(__builtin_offsetof(lb_skip_key_t, port) == (AF == 4 ? 12 : 28), "skip_key.port");

MAP(AF_FN(cilium_skip_lb), BPF_MAP_TYPE_HASH, lb_skip_key_t, __u8);
