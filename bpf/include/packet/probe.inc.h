/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Probes of one address family. */

/* An egress packet that may be a probe. Returns a verdict; NOT_HANDLED if it is none. */
GLOBAL int AF_FN(send_probe)(CTX *ctx, scratch_t *scratch)
{
	const lb_backend_t *backend;
	const struct lxc_value *local;
	struct ethernet *ethernet;
	packet_t *packet;
	struct trace_ctx *trace;
	__u64 cookie;
	int error;

	scratch = OWN_SCRATCH(scratch);
	if (!scratch || !options.packet.health_probes)
		return NOT_HANDLED;
	trace = &scratch->trace;
	packet = &scratch->packet;
	cookie = bpf_get_socket_cookie(ctx);
	backend = bpf_map_lookup_elem(&AF_JOIN(cilium_lb, _health), &cookie);
	if (!backend)
		return NOT_HANDLED;
	AF_COPY(scratch->chosen, backend->address);
	if (AF_FN(parse)(ctx, packet) || packet->ct_error)
		return FAIL(trace, DROP_INVALID);
	error = AF_FN(ipip_encapsulate)(ctx, scratch, scratch->chosen);
	if (error)
		return FAIL(trace, error);
	mark_snat_done(ctx);
	local = AF_FN(lxc_lookup)(scratch->chosen);
	if (local && !(local->flags & (LXC_HOST | LXC_AT_HOST_NS))) {
		/* A local backend receives it as from the network. */
		ethernet = packet_bytes(ctx, 0, sizeof(*ethernet));
		if (!ethernet)
			return FAIL(trace, DROP_WRITE);
		copy_mac(ethernet->destination, scratch->device.mac);
		return bpf_redirect(ctx->ifindex, BPF_F_INGRESS);
	}
	AF_COPY(packet->daddr, scratch->chosen);
	return AF_FN(route)(ctx, scratch, 1);
}
