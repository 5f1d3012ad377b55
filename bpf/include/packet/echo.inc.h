/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Echo messages of one address family. */

/* Reads the headers of the packet that the program is called with. Returns a drop reason if they
 * are broken, or 0.
 */
static __always_inline __u8 AF_FN(read_packet)(CTX *ctx, struct AF_FN(work) * work)
{
	struct AF_FN(packet) *packet = &work->packet;
	__u8 broken = AF_FN(parse)(ctx, packet);

	if (!broken && packet->fragment == FRAGMENT_FIRST && packet->proto == ICMP_PROTO &&
	    !packet->ct_error) {
		__builtin_memset(&work->message, 0, sizeof(work->message));
		AF_FN(fragment_key)(packet, &work->message);
		/* A request has no destination port, a reply no source port. */
		work->echo.sport = packet->sport | packet->dport;
		work->echo.dport = bpf_htons(packet->icmp_type);
		work->path.begins_echo = 1;
	}
	return broken;
}
