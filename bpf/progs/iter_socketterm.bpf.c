/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Destroys client sockets of backends that are gone (needs bpf_sock_destroy, Linux 6.5).
 *
 * User space fills the map of backends, then reads one iterator a protocol in every network
 * namespace; one pass handles any number of backends. Each destroyed socket's cookie is written to
 * the iterator.
 */
#include <linux/bpf.h>
#include <linux/in.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "common/af.h"
#include "lb/reverse_sk.h"
#include "socket/kernel.h"

/* Rust twin: DeadBackendKey in bpf/programs/src/terminate.rs */
struct dead_backend_key {
	__be32 address[4]; /* IPv4 in the first word, rest zero */
	__be16 port;
	__u8 proto;
	__u8 family;
};
_Static_assert(sizeof(struct dead_backend_key) == 20, "dead_backend_key layout");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__type(key, struct dead_backend_key);
	__type(value, __u8);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC | BPF_F_RDONLY_PROG);
} skep_dead_backends SEC(".maps");

extern int bpf_sock_destroy(struct sock_common *sk) __ksym;

/* Destroys the socket if its peer is a dead backend of this family, reached through a service. */
static __always_inline void terminate(struct seq_file *seq, struct sock_common *sk, __u8 proto,
				      __u16 wanted)
{
	struct dead_backend_key dead = {.port = sk->skc_dport, .proto = proto};
	struct lb4_reverse_sk_key key4 = {.port = sk->skc_dport};
	struct lb6_reverse_sk_key key6 = {.port = sk->skc_dport};
	__u16 family = sk->skc_family;
	__u64 cookie;
	void *asked;

	if (!dead.port)
		return;
	if (family == AF_INET6) {
		/* Each read of a socket is relocated by itself: no pointer into it is passed on. */
		dead.address[0] = sk->skc_v6_daddr.in6_u.u6_addr32[0];
		dead.address[1] = sk->skc_v6_daddr.in6_u.u6_addr32[1];
		dead.address[2] = sk->skc_v6_daddr.in6_u.u6_addr32[2];
		dead.address[3] = sk->skc_v6_daddr.in6_u.u6_addr32[3];
		if (is_mapped4(dead.address)) {
			dead.address[0] = dead.address[3];
			dead.address[1] = 0;
			dead.address[2] = 0;
			dead.address[3] = 0;
			family = AF_INET;
		}
	} else if (family == AF_INET) {
		dead.address[0] = sk->skc_daddr;
	} else {
		return;
	}
	if (family != wanted)
		return;
	dead.family = family;
	if (!bpf_map_lookup_elem(&skep_dead_backends, &dead))
		return;

	/* Only sockets that came to this backend through a service. */
	cookie = bpf_get_socket_cookie(sk);
	if (family == AF_INET) {
		key4.cookie = cookie;
		key4.address = dead.address[0];
		asked = bpf_map_lookup_elem(&cilium_lb4_reverse_sk, &key4);
	} else {
		key6.cookie = cookie;
		copy6(key6.address, dead.address);
		asked = bpf_map_lookup_elem(&cilium_lb6_reverse_sk, &key6);
	}
	if (!asked || bpf_sock_destroy(sk))
		return;
	bpf_seq_write(seq, &cookie, sizeof(cookie));
}

SEC("iter/udp")
int cil_sock_udp_destroy_v4(struct bpf_iter__udp *ctx)
{
	struct udp_sock *udp = ctx->udp_sk;

	if (udp)
		terminate(ctx->meta->seq, (struct sock_common *)udp, IPPROTO_UDP, AF_INET);
	return 0;
}

SEC("iter/udp")
int cil_sock_udp_destroy_v6(struct bpf_iter__udp *ctx)
{
	struct udp_sock *udp = ctx->udp_sk;

	if (udp)
		terminate(ctx->meta->seq, (struct sock_common *)udp, IPPROTO_UDP, AF_INET6);
	return 0;
}

SEC("iter/tcp")
int cil_sock_tcp_destroy_v4(struct bpf_iter__tcp *ctx)
{
	struct sock_common *sk = ctx->sk_common;

	if (sk)
		terminate(ctx->meta->seq, sk, IPPROTO_TCP, AF_INET);
	return 0;
}

SEC("iter/tcp")
int cil_sock_tcp_destroy_v6(struct bpf_iter__tcp *ctx)
{
	struct sock_common *sk = ctx->sk_common;

	if (sk)
		terminate(ctx->meta->seq, sk, IPPROTO_TCP, AF_INET6);
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
