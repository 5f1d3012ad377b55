// SPDX-License-Identifier: Apache-2.0

//! What a map must look like.

use std::{
    collections::HashMap,
    fmt, io,
    marker::PhantomData,
    mem::size_of,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use bitflags::bitflags;

use super::{InnerSpec, MapError, RawSpec};
use crate::syscall::{self as sys, EntryTypes, MapInfo, MapShape};

/// Type of a map, by its number in `linux/bpf.h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum MapKind {
    Hash = 1,
    Array = 2,
    ProgArray = 3,
    /// Ring buffers to user space, one a CPU.
    PerfEventArray = 4,
    /// Hash table with a value a CPU.
    PerCpuHash = 5,
    /// Array with a value a CPU.
    PerCpuArray = 6,
    /// Hash table that forgets what was not used for longest.
    LruHash = 9,
    /// As `LruHash`, with a value a CPU.
    LruPerCpuHash = 10,
    LpmTrie = 11,
    ArrayOfMaps = 12,
    /// Hash table whose values are maps.
    HashOfMaps = 13,
}

/// Maps with one value for each CPU: hash, array, LRU hash, cgroup storage.
pub(crate) fn is_per_cpu(kind: u32) -> bool {
    matches!(kind, 5 | 6 | 10 | 21)
}

bitflags! {
    /// Creation flags of a map, as in `linux/bpf.h`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct MapFlags: u32 {
        /// Memory is allocated when entries are added.
        const NO_PREALLOC = 1;
        /// Every CPU has its own LRU list.
        const NO_COMMON_LRU = 1 << 1;
        /// Programs may only read (Linux 5.2).
        const RDONLY_PROG = 1 << 7;
        /// User space can map its memory (Linux 5.5).
        const MMAPABLE = 1 << 10;
    }
}

impl MapFlags {
    pub const NONE: Self = Self::empty();
}

/// What a map of `K` to `V` must look like.
#[derive(Debug)]
pub struct MapSpec<K, V> {
    raw: RawSpec,
    types: PhantomData<fn() -> (K, V)>,
}

impl<K, V> Clone for MapSpec<K, V> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K, V> Copy for MapSpec<K, V> {}

impl<K, V> MapSpec<K, V> {
    /// A map of this name, type, size and flags.
    pub const fn new(name: &'static str, kind: MapKind, max_entries: u32, flags: MapFlags) -> Self {
        Self {
            raw: RawSpec {
                name,
                kind,
                key_size: size_of::<K>() as u32,
                value_size: size_of::<V>() as u32,
                max_entries,
                flags,
                inner: None,
            },
            types: PhantomData,
        }
    }

    /// Name of the map and of its pin.
    pub const fn name(&self) -> &'static str {
        self.raw.name
    }

    pub const fn max_entries(&self) -> u32 {
        self.raw.max_entries
    }

    pub const fn raw(&self) -> &RawSpec {
        &self.raw
    }
}

/// Names and types of the fields of maps, as debug information that the kernel keeps: tools that dump a map show
/// them. Made by `skep_bpf_programs::map_types`.
#[derive(Debug)]
pub struct MapTypes {
    btf: OwnedFd,
    ids: HashMap<String, (u32, u32)>,
}

impl MapTypes {
    /// Types of key and value by the map's name, in `btf`.
    pub fn new(btf: OwnedFd, ids: HashMap<String, (u32, u32)>) -> Self {
        Self { btf, ids }
    }

    fn of(&self, map: &str) -> Option<EntryTypes<'_>> {
        let (key, value) = *self.ids.get(map)?;
        Some(EntryTypes {
            btf: self.btf.as_fd(),
            key,
            value,
        })
    }
}

/// Creates a map whose fields have names. A kernel that refuses the types makes the same map without them.
pub(crate) fn create(
    spec: &RawSpec,
    inner: Option<BorrowedFd<'_>>,
    types: Option<&MapTypes>,
) -> Result<OwnedFd, MapError> {
    let shape = MapShape {
        kind: spec.kind as u32,
        key_size: spec.key_size,
        value_size: spec.value_size,
        max_entries: spec.max_entries,
        flags: spec.flags.bits(),
    };
    if let Some(types) = types.and_then(|types| types.of(spec.name))
        && let Ok(map) = sys::map_create(spec.name, shape, inner, Some(types))
    {
        return Ok(map);
    }
    sys::map_create(spec.name, shape, inner, None).map_err(|source| MapError::Create {
        map: spec.name.to_owned(),
        max_entries: spec.max_entries,
        flags: shape.flags,
        source,
    })
}

pub(crate) fn create_inner(inner: &InnerSpec) -> io::Result<OwnedFd> {
    let shape = MapShape {
        kind: inner.kind as u32,
        key_size: inner.key_size,
        value_size: inner.value_size,
        max_entries: inner.max_entries,
        flags: inner.flags.bits(),
    };
    sys::map_create(inner.name, shape, None, None)
}

impl RawSpec {
    /// How an existing map differs from this specification; the inner maps do not count.
    ///
    /// A map that programs may write although they need not is not a difference: maps of versions that
    /// did not know the flag are kept.
    pub(crate) fn differences(&self, info: &MapInfo) -> Mismatch {
        let read_only = MapFlags::RDONLY_PROG.bits();
        let tolerated = if info.flags & read_only == 0 {
            !read_only
        } else {
            !0
        };
        let mut mismatch = Mismatch::default();
        mismatch.compare("type", self.kind as u32, info.kind);
        mismatch.compare("key size", self.key_size, info.key_size);
        mismatch.compare("value size", self.value_size, info.value_size);
        mismatch.compare("max entries", self.max_entries, info.max_entries);
        mismatch.compare("flags", self.flags.bits() & tolerated, info.flags & tolerated);
        mismatch
    }
}

/// How a map differs from what is wanted. Displays as `max entries 10 instead of 20, …`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Mismatch(Vec<(&'static str, u32, u32)>);

impl Mismatch {
    pub(crate) fn compare(&mut self, what: &'static str, wanted: u32, found: u32) {
        if wanted != found {
            self.0.push((what, wanted, found));
        }
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, (what, wanted, found)) in self.0.iter().enumerate() {
            let comma = if n > 0 { ", " } else { "" };
            write!(f, "{comma}{what} {found} instead of {wanted}")?;
        }
        Ok(())
    }
}
