// SPDX-License-Identifier: Apache-2.0

//! One map by bytes, in the kernel or in memory.

use std::{fmt, io, os::fd::BorrowedFd};

use super::{MapFlags, MapKind, percpu};
use crate::syscall::MapInfo;

/// One map, by the bytes of its keys and values. [`Map`](super::Map) is the typed view of it.
///
/// A *value* is everything that belongs to a key: the values of all CPUs (each rounded up to 8 bytes) of a per-CPU map,
/// the content of the inner map of a map of maps. Implementations keep the contract in
/// `skep_bpf_sys::map::contract` (feature `testing`).
pub trait RawMap: fmt::Debug + Send + Sync {
    /// Name of the map and of its pin.
    fn name(&self) -> &str;

    /// What the kernel says about it; the id is 0 for maps in memory.
    fn info(&self) -> MapInfo;

    /// Bytes of a value. 0 for a map of maps that was opened without its specification and is empty.
    fn value_len(&self) -> usize;

    /// Calls `read` with the value of an entry; false if there is none. A map of prefixes looks for the longest one.
    fn lookup(&self, key: &[u8], read: &mut dyn FnMut(&[u8])) -> io::Result<bool>;

    /// Inserts or replaces the entries `keys[i]` → `values[i]`, in order, with as few calls as possible. Returns those
    /// that failed, by index; an entry that fails does not keep those behind it from being written.
    fn update(&self, keys: &[u8], values: &[u8]) -> Vec<RawFailure>;

    /// Deletes entries with as few calls as possible; deleting what is absent is success.
    fn delete(&self, keys: &[u8]) -> RawDeletion;

    /// Calls `visit` with every entry, in any order. Entries written or deleted meanwhile may or may not be seen.
    ///
    /// # Errors
    ///
    /// What the kernel says; `EOPNOTSUPP` for kinds whose entries user space does not read.
    fn walk(&self, visit: &mut dyn FnMut(&[u8], &[u8])) -> io::Result<()>;

    /// Its descriptor, if it is in the kernel and open.
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// An entry of a batch that failed.
#[derive(Debug)]
pub struct RawFailure {
    pub index: usize,
    pub error: io::Error,
}

/// Result of a batch of deletions.
#[derive(Debug, Default)]
pub struct RawDeletion {
    pub deleted: usize,
    /// Keys whose entries could not be deleted, by index.
    pub failures: Vec<RawFailure>,
}

/// What a map must look like, without Rust types.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RawSpec {
    /// Name of the map and of its pin.
    pub name: &'static str,
    pub kind: MapKind,
    pub key_size: u32,
    /// Bytes of a value; of one CPU's value in a per-CPU map, 4 in a map of maps.
    pub value_size: u32,
    pub max_entries: u32,
    pub flags: MapFlags,
    /// The inner maps of a map of maps.
    pub inner: Option<InnerSpec>,
}

/// Inner maps of a map of maps.
///
/// *Tables*, arrays with one entry ([`InnerSpec::table`]), are written and read as a whole, as values of the outer map. Of
/// all others the value is 4 bytes, as in the kernel: the descriptor when it is written, the id when it is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InnerSpec {
    pub name: &'static str,
    pub kind: MapKind,
    pub key_size: u32,
    pub value_size: u32,
    pub max_entries: u32,
    pub flags: MapFlags,
}

impl InnerSpec {
    pub const fn table(name: &'static str, bytes: u32) -> Self {
        Self {
            name,
            kind: MapKind::Array,
            key_size: 4,
            value_size: bytes,
            max_entries: 1,
            flags: MapFlags::NONE,
        }
    }

    /// Whether it is written and read as a whole.
    pub(crate) const fn is_table(&self) -> bool {
        matches!(self.kind, MapKind::Array)
    }

    /// Bytes of a value of the outer map.
    pub(crate) const fn value_len(&self) -> usize {
        if self.is_table() {
            self.value_size as usize
        } else {
            4
        }
    }
}

impl RawSpec {
    /// Bytes of a value as [`RawMap`] reads and writes it.
    pub fn value_len(&self) -> usize {
        match self.inner {
            Some(inner) => inner.value_len(),
            None => value_len(self.kind as u32, self.value_size),
        }
    }

    /// The kernel's description of a map that was made by it.
    pub(crate) fn info(&self) -> MapInfo {
        let mut name = [0; 16];
        for (to, from) in name.iter_mut().zip(self.name.bytes().take(15)) {
            *to = from;
        }
        MapInfo {
            kind: self.kind as u32,
            id: 0,
            key_size: self.key_size,
            value_size: self.value_size,
            max_entries: self.max_entries,
            flags: self.flags.bits(),
            name,
        }
    }
}

/// Bytes of a value of a map that holds no maps.
pub(crate) fn value_len(kind: u32, value_size: u32) -> usize {
    if super::spec::is_per_cpu(kind) {
        percpu::stride(value_size as usize) * percpu::possible_cpus() as usize
    } else {
        value_size as usize
    }
}

/// Map kinds whose entries user space cannot read.
pub(crate) fn is_opaque(kind: u32) -> bool {
    [MapKind::ProgArray, MapKind::PerfEventArray]
        .map(|kind| kind as u32)
        .contains(&kind)
}

/// Map kinds whose values are maps.
pub(crate) fn is_nested(kind: u32) -> bool {
    [MapKind::ArrayOfMaps, MapKind::HashOfMaps]
        .map(|kind| kind as u32)
        .contains(&kind)
}

/// The operation does not exist for this kind of map.
pub(crate) fn unsupported() -> io::Error {
    io::Error::from_raw_os_error(libc::EOPNOTSUPP)
}
