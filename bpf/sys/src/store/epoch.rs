// SPDX-License-Identifier: Apache-2.0

//! The epoch of the flow table: programs go on with what they recorded of a flow only while it is what it was then, and
//! nothing is being written. Every map of a store counts as a writer during each write, and raises the epoch after it, so
//! no writer can forget it, and the table rests after one that was killed meanwhile, until the agent starts again.

use std::{
    io,
    os::fd::{AsRawFd as _, BorrowedFd},
    path::Path,
    ptr::NonNull,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU32, Ordering},
    },
};

use crate::map::{KernelMap, RawMap as _};

/// Name of the map of the epoch: an array with one value of an epoch and a count of writers, which user space can map (`MMAPABLE`).
pub const EPOCH: &str = "skep_epoch";

/// Value of the map. C twin: `struct flow_epoch` in `bpf/include/flow/flow.h`.
#[repr(C)]
struct State {
    epoch: AtomicU32,
    writers: AtomicU32,
}

/// The epoch of a store; none until the map is there, as on nodes whose programs keep no flow table.
#[derive(Debug, Clone, Default)]
pub(crate) struct Epoch(Arc<OnceLock<Shared>>);

impl Epoch {
    /// Uses this map from now on, if it is the first.
    pub(crate) fn fill(&self, map: BorrowedFd<'_>) -> io::Result<()> {
        if self.0.get().is_none() {
            let _ = self.0.set(Shared::new(map)?);
        }
        Ok(())
    }

    /// Uses the map of a directory of pins, if there is one.
    pub(crate) fn find(&self, directory: &Path) {
        if self.0.get().is_some() {
            return;
        }
        let found = KernelMap::open(EPOCH, &directory.join(EPOCH));
        if let Some(map) = found.ok().as_ref().and_then(|map| map.fd()) {
            // One that another version made is not known to programs of this one.
            let _ = self.fill(map);
        }
    }

    /// Invalidates all recorded flows.
    pub(crate) fn raise(&self) {
        if let Some(shared) = self.0.get() {
            shared.state().epoch.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Invalidates recorded flows while the guard lives, and for ever those that were recorded before its end.
    pub(crate) fn write(&self) -> Write<'_> {
        let shared = self.0.get();
        if let Some(shared) = shared {
            shared.state().writers.fetch_add(1, Ordering::SeqCst);
        }
        Write(shared)
    }

    /// Forgets writers of processes that were killed.
    pub(crate) fn forget_writers(&self) {
        if let Some(shared) = self.0.get() {
            shared.state().epoch.fetch_add(1, Ordering::SeqCst);
            shared.state().writers.store(0, Ordering::SeqCst);
        }
    }

    /// Writers, if there is a map.
    pub(crate) fn writers(&self) -> Option<u32> {
        self.0
            .get()
            .map(|shared| shared.state().writers.load(Ordering::SeqCst))
    }

    /// The epoch, if there is a map.
    pub(crate) fn get(&self) -> Option<u32> {
        self.0
            .get()
            .map(|shared| shared.state().epoch.load(Ordering::SeqCst))
    }
}

/// A write to a map.
pub(crate) struct Write<'a>(Option<&'a Shared>);

impl Drop for Write<'_> {
    fn drop(&mut self) {
        let Some(state) = self.0.map(Shared::state) else {
            return;
        };
        state.epoch.fetch_add(1, Ordering::SeqCst);
        // The agent may have forgotten this writer.
        let fewer = |writers: u32| Some(writers.saturating_sub(1));
        let _ = state
            .writers
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, fewer);
    }
}

/// Memory of an array map.
#[derive(Debug)]
struct Shared {
    page: NonNull<State>,
    length: usize,
}

// SAFETY: the memory is mapped until the value is dropped, and accessed as atomic integers alone.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Shared {
    fn new(map: BorrowedFd<'_>) -> io::Result<Self> {
        // Any part of a page maps it.
        let length = size_of::<State>();
        // SAFETY: a new mapping at an address that the kernel selects; an array map with `MMAPABLE` has at least a page.
        let page = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                length,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                map.as_raw_fd(),
                0,
            )
        };
        if page == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let page = NonNull::new(page.cast()).ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))?;
        Ok(Self { page, length })
    }

    fn state(&self) -> &State {
        // SAFETY: mapped as long as `self`, aligned to a page; programs change it by atomic additions.
        unsafe { self.page.as_ref() }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: what `new` has mapped; references to it borrow `self`.
        unsafe { libc::munmap(self.page.as_ptr().cast(), self.length) };
    }
}
