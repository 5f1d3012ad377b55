/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Service map of one address family. */

/* Slot 0 is the master entry, slots 1 to count + qcount name the backends. */
struct AF_JOIN(lb, _service_key) {
	AF_ADDRESS(address); /* 0 in the NodePort and HostPort surrogate */
	__be16 dport;	     /* 0 in the wildcard entry of an address */
	__u16 backend_slot;
	__u8 proto;  /* 0 in the wildcard entry of an address */
	__u8 scope;  /* enum lb_scope */
	__u8 pad[2]; /* always zero: keys are compared as bytes */
};
_Static_assert(sizeof(lb_service_key_t) == AF_SIZE + 8, "service_key layout");
_Static_assert(__builtin_offsetof(lb_service_key_t, backend_slot) == AF_SIZE + 2,
	       "service_key.backend_slot");
_Static_assert(__builtin_offsetof(lb_service_key_t, scope) == AF_SIZE + 5, "service_key.scope");

MAP(AF_JOIN(cilium_lb, _services_v2), BPF_MAP_TYPE_HASH, lb_service_key_t, struct lb_service);
