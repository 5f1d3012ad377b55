/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Probes of one address family. */

/* A packet that leaves the node, which may be a probe. Returns 0 if it is none, else a verdict, or
 * less: a drop reason.
 */
GLOBAL int AF_FN(send_probe)(CTX *ctx, struct AF_FN(work) * work)
{
	const struct AF_JOIN(lb, _backend) * backend;
	const struct lxc_value *local;
	struct ethernet *ethernet;
	struct AF_FN(packet) * packet;
	struct path *path;
	__u64 cookie;
	int error;

	work = OWN_WORK(work);
	if (!work || !options.packet.health_probes)
		return 0;
	path = &work->path;
	packet = &work->packet;
	cookie = bpf_get_socket_cookie(ctx);
	backend = bpf_map_lookup_elem(&AF_JOIN(cilium_lb, _health), &cookie);
	if (!backend)
		return 0;
	AF_COPY(work->chosen, backend->address);
	if (AF_FN(parse)(ctx, packet) || packet->ct_error)
		return FAIL(path, DROP_INVALID);
	error = AF_FN(ipip_encapsulate)(ctx, work, work->chosen);
	if (error)
		return FAIL(path, error);
	mark_snat_done(ctx);
	local = AF_FN(lxc_lookup)(work->chosen);
	if (local && !(local->flags & (LXC_HOST | LXC_AT_HOST_NS))) {
		/* A backend of this node gets it as if it came from the network. */
		ethernet = packet_bytes(ctx, 0, sizeof(*ethernet));
		if (!ethernet)
			return FAIL(path, DROP_WRITE);
		copy_mac(ethernet->destination, work->device.mac);
		return bpf_redirect(ctx->ifindex, BPF_F_INGRESS);
	}
	AF_COPY(packet->daddr, work->chosen);
	return AF_FN(route)(ctx, work, 1);
}
