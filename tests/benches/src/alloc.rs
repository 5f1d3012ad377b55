// SPDX-License-Identifier: Apache-2.0

//! The system's allocator, counting bytes.
//!
//! Counters are kept apart by thread (in cache lines of their own), so that counting does not make threads wait
//! for each other.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

const SHARDS: usize = 16;

#[repr(align(128))]
struct Shard {
    allocated: AtomicU64,
    freed: AtomicU64,
}

static TALLY: [Shard; SHARDS] = [const {
    Shard {
        allocated: AtomicU64::new(0),
        freed: AtomicU64::new(0),
    }
}; SHARDS];

thread_local! {
    static PLACE: Cell<usize> = const { Cell::new(usize::MAX) };
}

fn shard() -> &'static Shard {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    // A thread that ends has no place any more.
    let place = PLACE.try_with(|place| {
        if place.get() == usize::MAX {
            place.set(NEXT.fetch_add(1, Ordering::Relaxed) % SHARDS);
        }
        place.get()
    });
    &TALLY[place.unwrap_or(0)]
}

/// Whether anybody wants to know.
static COUNTS: AtomicBool = AtomicBool::new(true);

/// Runs `timed` without counting, which is a tenth of the time where much is allocated and little else done. All that it
/// allocates must be freed when it ends.
pub(crate) fn uncounted<T>(timed: impl FnOnce() -> T) -> T {
    COUNTS.store(false, Ordering::Relaxed);
    let result = timed();
    COUNTS.store(true, Ordering::Relaxed);
    result
}

fn count(allocated: usize, freed: usize) {
    if COUNTS.load(Ordering::Relaxed) {
        let shard = shard();
        if allocated > 0 {
            shard.allocated.fetch_add(allocated as u64, Ordering::Relaxed);
        }
        if freed > 0 {
            shard.freed.fetch_add(freed as u64, Ordering::Relaxed);
        }
    }
}

/// Counts what passes through it.
pub(crate) struct Counting;

// SAFETY: every call is handed on to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 0);
        // SAFETY: the caller's promise about `layout`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 0);
        // SAFETY: the caller's promise about `layout`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(0, layout.size());
        // SAFETY: the caller's promise about `pointer` and `layout`.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size, layout.size());
        // SAFETY: the caller's promise about `pointer`, `layout` and `size`.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

/// Bytes allocated since the process began.
pub(crate) fn allocated() -> u64 {
    TALLY
        .iter()
        .map(|shard| shard.allocated.load(Ordering::Relaxed))
        .sum()
}

/// Bytes in use.
pub(crate) fn in_use() -> u64 {
    let freed: u64 = TALLY
        .iter()
        .map(|shard| shard.freed.load(Ordering::Relaxed))
        .sum();
    allocated().saturating_sub(freed)
}
