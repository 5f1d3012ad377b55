/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Echo messages of one address family. */

/* Reads the headers of the packet that the program is called with. Returns a drop reason if they
 * are broken, or 0.
 */
static __always_inline __u8 AF_FN(read_packet)(CTX *ctx, scratch_t *scratch)
{
	packet_t *packet = &scratch->packet;
	__u8 broken = AF_FN(parse)(ctx, packet);

	if (!broken && packet->fragment == FRAGMENT_FIRST && packet->proto == ICMP_PROTO &&
	    !packet->ct_error) {
		__builtin_memset(&scratch->message, 0, sizeof(scratch->message));
		AF_FN(fragment_key)(packet, &scratch->message);
		/* A request has no destination port, a reply no source port. */
		scratch->echo.sport = packet->sport | packet->dport;
		scratch->echo.dport = bpf_htons(packet->icmp_type);
		scratch->trace.begins_echo = 1;
	}
	return broken;
}
