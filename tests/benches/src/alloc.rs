// SPDX-License-Identifier: Apache-2.0

//! The allocator of the agent, counting bytes.
//!
//! Each thread counts in a place of its own, with plain loads and stores: counting is not to be a part of what is measured.

use std::alloc::{GlobalAlloc, Layout};
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use skep_base_alloc::Allocator;

/// Threads that have a place of their own; any more share the last one.
const OWN: usize = 63;

#[repr(align(128))]
struct Place {
    allocated: AtomicU64,
    freed: AtomicU64,
}

static TALLY: [Place; OWN + 1] = [const {
    Place {
        allocated: AtomicU64::new(0),
        freed: AtomicU64::new(0),
    }
}; OWN + 1];

thread_local! {
    static NUMBER: Cell<usize> = const { Cell::new(usize::MAX) };
}

#[inline]
fn place() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    // A thread that ends has no number any more.
    let number = NUMBER.try_with(|number| {
        if number.get() == usize::MAX {
            number.set(NEXT.fetch_add(1, Ordering::Relaxed).min(OWN));
        }
        number.get()
    });
    number.unwrap_or(OWN)
}

fn add(place: usize, counter: &AtomicU64, bytes: usize) {
    if place < OWN {
        counter.store(counter.load(Ordering::Relaxed) + bytes as u64, Ordering::Relaxed);
    } else {
        counter.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

static COUNTS: AtomicBool = AtomicBool::new(true);

/// Runs `timed` without counting, where much is allocated and little else done. All that it allocates must be freed when it
/// ends.
pub(crate) fn uncounted<T>(timed: impl FnOnce() -> T) -> T {
    COUNTS.store(false, Ordering::Relaxed);
    let result = timed();
    COUNTS.store(true, Ordering::Relaxed);
    result
}

#[inline]
fn count(allocated: usize, freed: usize) {
    if COUNTS.load(Ordering::Relaxed) {
        let place = place();
        if allocated > 0 {
            add(place, &TALLY[place].allocated, allocated);
        }
        if freed > 0 {
            add(place, &TALLY[place].freed, freed);
        }
    }
}

pub(crate) struct Counting;

// SAFETY: every call is handed on to the heap as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 0);
        // SAFETY: the caller's promise about `layout`.
        unsafe { Allocator.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 0);
        // SAFETY: the caller's promise about `layout`.
        unsafe { Allocator.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(0, layout.size());
        // SAFETY: the caller's promise about `pointer` and `layout`.
        unsafe { Allocator.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size, layout.size());
        // SAFETY: the caller's promise about `pointer`, `layout` and `size`.
        unsafe { Allocator.realloc(pointer, layout, size) }
    }
}

/// Bytes allocated since the process began.
pub(crate) fn allocated() -> u64 {
    TALLY
        .iter()
        .map(|place| place.allocated.load(Ordering::Relaxed))
        .sum()
}

pub(crate) fn in_use() -> u64 {
    let freed: u64 = TALLY
        .iter()
        .map(|place| place.freed.load(Ordering::Relaxed))
        .sum();
    allocated().saturating_sub(freed)
}
