// SPDX-License-Identifier: Apache-2.0

//! The epoch of the flow table: programs go on with what they recorded of a flow only while it is what it was then.
//! Every map of a store raises it after each write, so no writer can forget it.

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

/// Name of the map of the epoch: an array with one `u32`, which user space can map (`MMAPABLE`).
pub const EPOCH: &str = "skep_epoch";

/// Bytes of memory that are mapped: any part of a page maps it.
const PAGE: usize = size_of::<AtomicU32>();

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
            shared.value().fetch_add(1, Ordering::Release);
        }
    }

    /// The epoch, if there is a map.
    pub(crate) fn get(&self) -> Option<u32> {
        self.0.get().map(|shared| shared.value().load(Ordering::Acquire))
    }
}

/// Memory of an array map.
#[derive(Debug)]
struct Shared {
    page: NonNull<AtomicU32>,
    length: usize,
}

// SAFETY: the memory is mapped until the value is dropped, and accessed as an atomic integer alone.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Shared {
    fn new(map: BorrowedFd<'_>) -> io::Result<Self> {
        let length = PAGE;
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

    fn value(&self) -> &AtomicU32 {
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
