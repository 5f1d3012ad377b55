// SPDX-License-Identifier: Apache-2.0

//! The memory of programs that run for long: the allocator, mimalloc set to keep little, or that of glibc with one
//! arena ([`share_arena`]); and [`program`], the pages of the program itself, which a cell (feature `hive`) releases when
//! the program has started.
//!
//! Rows are made by one thread and freed by another, all the time. With the allocator of glibc both then wait for the
//! lock of an arena, thousands of times a second while services arrive; mimalloc hands such memory back without a
//! lock. It is version 2, because version 3 needs a quarter more memory at its peak for the same work. Operators have no
//! such load, and need less memory with the allocator of glibc.
//!
//! ```
//! #[global_allocator]
//! static ALLOCATOR: skep_base_alloc::Allocator = skep_base_alloc::Allocator;
//!
//! # fn main() {
//! assert_eq!(vec![1, 2, 3].len(), 3);
//! # }
//! ```

use std::alloc::{GlobalAlloc, Layout};
use std::ffi::{c_int, c_long};
use std::sync::atomic::{AtomicBool, Ordering};

use mimalloc::MiMalloc;

#[cfg(feature = "hive")]
mod cell;
pub mod program;

#[cfg(feature = "hive")]
pub use cell::cell;

/// What a program declares as its `#[global_allocator]`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Allocator;

/// `mi_option_arena_eager_commit` and `mi_option_purge_delay` of `mimalloc.h`.
const ARENA_EAGER_COMMIT: c_int = 4;
const PURGE_DELAY: c_int = 15;

/// Free memory goes back to the kernel after one millisecond instead of ten, and is taken page by page instead of in large
/// parts: what was needed for a list of objects is otherwise still there when their rows are made, and the next list
/// comes on top of both.
const OPTIONS: [(c_int, c_long); 2] = [(ARENA_EAGER_COMMIT, 0), (PURGE_DELAY, 1)];

/// Options count for memory that is taken from the kernel after they were set, so they are set by the first allocation,
/// which comes before `main` and before there is a second thread.
static IS_READY: AtomicBool = AtomicBool::new(false);

#[inline]
fn ready() {
    if !IS_READY.load(Ordering::Relaxed) {
        prepare();
    }
}

#[cold]
fn prepare() {
    IS_READY.store(true, Ordering::Relaxed);
    for (option, value) in OPTIONS {
        // SAFETY: writes a number into a table that is there from the start, and allocates nothing.
        unsafe { libmimalloc_sys::mi_option_set(option, value) };
    }
}

/// For programs that keep the allocator of glibc: has all threads allocate from one arena, where each thread would have
/// its own by and by. They wait for each other at times, and what one frees the next one takes. An operator at rest has
/// 3.7 MiB of heap and stacks with it, and 9.1 with [`Allocator`], which keeps pages for each size of each thread. To be
/// called first in `main`. Does nothing with other C libraries.
///
/// ```
/// skep_base_alloc::share_arena();
/// ```
pub fn share_arena() {
    #[cfg(target_env = "gnu")]
    // SAFETY: sets a number.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1)
    };
}

/// Hands memory that C libraries have freed back to the kernel. The allocator of glibc, which they use, keeps it for their next call:
/// 1.7 MiB of an agent that has loaded its BPF programs and may never load others. Does nothing with other C libraries.
///
/// ```
/// skep_base_alloc::trim_c();
/// ```
pub fn trim_c() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes the allocator's own locks, and moves nothing that is in use.
    unsafe {
        libc::malloc_trim(0)
    };
}

// SAFETY: every call is handed on as it came.
unsafe impl GlobalAlloc for Allocator {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ready();
        // SAFETY: the caller's promise about `layout`.
        unsafe { MiMalloc.alloc(layout) }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        ready();
        // SAFETY: the caller's promise about `layout`.
        unsafe { MiMalloc.alloc_zeroed(layout) }
    }

    #[inline]
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise about `pointer` and `layout`.
        unsafe { MiMalloc.dealloc(pointer, layout) }
    }

    #[inline]
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller's promise about `pointer`, `layout` and `size`.
        unsafe { MiMalloc.realloc(pointer, layout, size) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[global_allocator]
    static ALLOCATOR: Allocator = Allocator;

    /// Anonymous memory of the process that is there, in kB.
    #[cfg(target_env = "gnu")]
    fn anonymous() -> u64 {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find(|line| line.starts_with("RssAnon:")).unwrap();
        line.split_ascii_whitespace().nth(1).unwrap().parse().unwrap()
    }

    #[test]
    #[cfg(target_env = "gnu")]
    fn memory_that_c_libraries_freed_is_handed_back() {
        const SIZE: usize = 1000;
        // SAFETY: blocks of glibc are written within their size, and freed once.
        let (kept, before) = unsafe {
            let blocks: Vec<*mut u8> = (0..16_000).map(|_| libc::malloc(SIZE).cast()).collect();
            for block in &blocks {
                block.write_bytes(1, SIZE);
            }
            // What is above holds on to the rest.
            let kept = blocks[blocks.len() - 1];
            for block in &blocks[..blocks.len() - 1] {
                libc::free(block.cast());
            }
            (kept, anonymous())
        };

        trim_c();

        let after = anonymous();
        assert!(after + 12_000 < before, "{before} kB before, {after} after");
        // SAFETY: the one that was not freed.
        unsafe { libc::free(kept.cast()) };
    }

    fn option(option: c_int) -> c_long {
        // SAFETY: reads a number from a table that is there from the start.
        unsafe { libmimalloc_sys::mi_option_get(option) }
    }

    #[test]
    fn allocates_with_the_options() {
        let text = "x".repeat(100_000);

        assert!(text.bytes().all(|byte| byte == b'x'));
        // SAFETY: only asks whether the pointer is into a heap of mimalloc.
        assert!(unsafe { libmimalloc_sys::mi_is_in_heap_region(text.as_ptr().cast()) });
        for (number, value) in OPTIONS {
            assert_eq!(option(number), value);
        }
    }

    #[test]
    fn numbers_of_options_are_those_of_the_version() {
        // SAFETY: gives a number.
        assert_eq!(unsafe { libmimalloc_sys::mi_version() } / 10_000, 2);
        // Neighbours in the table, by their defaults: commit of segments and decommit of what is purged, NUMA nodes.
        assert_eq!([3, 5, 16].map(option), [1, 1, 0]);
    }
}
