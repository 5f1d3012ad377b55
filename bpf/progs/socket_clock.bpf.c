/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Tells the kernel's tick count: user space runs it twice to learn how many ticks a second has, and
 * to read the clock of maps.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

SEC("socket")
int skep_jiffies(struct __sk_buff *ctx __attribute__((unused)))
{
	return (int)bpf_jiffies64();
}

/* The clock of maps, with ticks. */
SEC("socket")
int skep_map_ticks(struct __sk_buff *ctx __attribute__((unused)))
{
	return (int)(bpf_jiffies64() >> 8);
}

/* bpf_jiffies64 is for GPL-compatible programs. */
char LICENSE[] SEC("license") = "Dual BSD/GPL";
