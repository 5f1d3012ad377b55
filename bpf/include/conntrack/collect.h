/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Garbage collection of connection tracking and NAT: iterators over the maps.
 *
 * A read of an iterator is a slice of a pass: it ends after some time, so that the kernel is not
 * held for long. The next one goes on in the bucket where it ended, past as many entries as were
 * seen there: nothing of that bucket may be deleted before, or others would be passed over. So a
 * slice ends at the first entry of a bucket, which, if it is to go, goes when the next one begins.
 */
#ifndef CONNTRACK_COLLECT_H
#define CONNTRACK_COLLECT_H

#include <linux/in.h>

#include "../common/iter.h"
#include "../nat/nat.h"
#include "../node/clock.h"
#include "state.h"

/* Entries between two looks at the time. */
#define GC_LOOKS 16
/* Longest kernel tick in nanoseconds. */
#define GC_TICK 10000000ULL

/* Parameters and progress of a pass. Rust twin: Pass in bpf/programs/src/collect.rs */
struct gc_pass {
	__u64 now;   /* entries whose lifetime ends before are deleted; 0: by the clock */
	__u64 slice; /* nanoseconds after which a read ends */
	__u64 seen;
	__u64 alive;
	__u64 deleted;
	__u64 nat_forward_alive;
	__u64 nat_reverse_alive;
	__u64 nat_forward_deleted;
	__u64 nat_reverse_deleted;
	__u64 slice_end;
	__u8 by_address;  /* entries with addresses of skep_gc_addresses are deleted, too */
	__u8 slice_ended; /* the read ends at the next entry that allows it */
	__u8 is_pending;  /* `pending` is to be deleted */
	__u8 pad[5];
	union {
		struct ct_key4 flow4;
		struct ct_key6 flow6;
		struct nat_key4 nat4;
		struct nat_key6 nat6;
		__u64 size[5];
	} pending;
};
_Static_assert(sizeof(struct gc_pass) == 128, "gc_pass layout");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct gc_pass);
} skep_gc_pass SEC(".maps");

/* IPv4 in the first word, rest zero. */
struct gc_address {
	__be32 address[4];
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC | BPF_F_RDONLY_PROG);
	__type(key, struct gc_address);
	__type(value, __u8);
} skep_gc_addresses SEC(".maps");

/* clock_now(), whose coarse clock iterators may not read. The exact one is up to a tick ahead: no
 * entry may end here before it ends for packets.
 */
static __always_inline __u64 gc_clock(void)
{
	if (options.clock_jiffies)
		return bpf_jiffies64() >> 8;
	return (bpf_ktime_get_ns() - GC_TICK) / NSEC_PER_SEC;
}

static __always_inline struct gc_pass *gc_pass(void)
{
	__u32 index = 0;

	return bpf_map_lookup_elem(&skep_gc_pass, &index);
}

/* Ends the read at this entry, if it is time and the entry is one to end at. */
static __always_inline int gc_ends_slice(struct gc_pass *pass, struct seq_file *seq)
{
	struct bpf_iter_seq_hash_map_info *position = seq->private;
	__u32 before = 0;
	__u64 now;
	__u8 end = 0;

	if (!(pass->seen++ % GC_LOOKS)) {
		now = bpf_ktime_get_ns();
		if (!pass->slice_end)
			pass->slice_end = now + pass->slice;
		else if (now > pass->slice_end)
			pass->slice_ended = 1;
	}
	if (!pass->slice_ended)
		return 0;
	if (bpf_probe_read_kernel(&before, sizeof(before),
				  __builtin_preserve_access_index(&position->skip_elems)) ||
	    before)
		return 0;
	/* The reader asks for one byte. */
	bpf_seq_write(seq, &end, sizeof(end));
	pass->slice_end = 0;
	pass->slice_ended = 0;
	return 1;
}

#define AF 4
#include "collect.inc.h"
#undef AF
#define AF 6
#include "collect.inc.h"
#undef AF

#endif /* CONNTRACK_COLLECT_H */
