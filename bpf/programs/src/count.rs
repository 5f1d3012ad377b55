// SPDX-License-Identifier: Apache-2.0

//! What packets make the programs call (feature `count-calls`): the packet objects, compiled once more with counters.

use std::{io, ops::Add};

use libbpf_rs::{MapCore as _, MapFlags, MapHandle, MapImpl};
use skep_bpf_sys::MapKind;

use crate::error::LoadError;

/// Kinds of maps that are counted apart. C twin: `bpf/include/common/count.h`.
const KINDS: usize = 64;
const BYTES: usize = (KINDS + 3) * 8;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Calls {
    lookups: [u64; KINDS],
    pub updates: u64,
    /// Lookups of routes (`bpf_fib_lookup()`).
    pub routes: u64,
    pub sockets: u64,
}

impl Calls {
    /// Lookups in hash maps, those of the least recently used and with values for each CPU included.
    pub fn hash_lookups(&self) -> u64 {
        let kinds = [
            MapKind::Hash,
            MapKind::PerCpuHash,
            MapKind::LruHash,
            MapKind::LruPerCpuHash,
            MapKind::HashOfMaps,
        ];
        kinds.into_iter().map(|kind| self.of(kind)).sum()
    }

    pub fn prefix_lookups(&self) -> u64 {
        self.of(MapKind::LpmTrie)
    }

    /// Lookups in arrays, which the kernel compiles into the program.
    pub fn array_lookups(&self) -> u64 {
        let all: u64 = self.lookups.iter().sum();
        all - self.hash_lookups() - self.prefix_lookups()
    }

    fn of(&self, kind: MapKind) -> u64 {
        self.lookups.get(kind as usize).copied().unwrap_or_default()
    }
}

impl Add for Calls {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            lookups: std::array::from_fn(|kind| self.lookups[kind] + other.lookups[kind]),
            updates: self.updates + other.updates,
            routes: self.routes + other.routes,
            sockets: self.sockets + other.sockets,
        }
    }
}

impl Default for Calls {
    fn default() -> Self {
        Self {
            lookups: [0; KINDS],
            updates: 0,
            routes: 0,
            sockets: 0,
        }
    }
}

#[derive(Debug)]
pub struct Counter(MapHandle);

impl Counter {
    /// The counters of an object, in the map of its global variables.
    pub(crate) fn new<T>(object: &'static str, map: &MapImpl<'_, T>) -> Result<Self, LoadError>
    where
        MapHandle: for<'a, 'b> TryFrom<&'a MapImpl<'b, T>, Error = libbpf_rs::Error>,
    {
        let map = MapHandle::try_from(map);
        Ok(Self(map.map_err(|source| LoadError::Counter { object, source })?))
    }

    /// What was called since the last call of this.
    ///
    /// # Errors
    ///
    /// What the kernel says, or that the object has other counters.
    pub fn take(&self) -> io::Result<Calls> {
        let key = 0_u32.to_ne_bytes();
        let bytes = self.0.lookup(&key, MapFlags::ANY).map_err(io::Error::other)?;
        let bytes = bytes.filter(|bytes| bytes.len() == BYTES).ok_or_else(|| {
            io::Error::other(format!(
                "the counters of {:?} are not {BYTES} bytes",
                self.0.name()
            ))
        })?;
        let zero = vec![0; BYTES];
        self.0
            .update(&key, &zero, MapFlags::ANY)
            .map_err(io::Error::other)?;
        let mut words = bytes.chunks_exact(8).map(|word| {
            let mut array = [0; 8];
            array.copy_from_slice(word);
            u64::from_ne_bytes(array)
        });
        let mut next = || words.next().unwrap_or_default();
        Ok(Calls {
            lookups: std::array::from_fn(|_| next()),
            updates: next(),
            routes: next(),
            sockets: next(),
        })
    }
}
