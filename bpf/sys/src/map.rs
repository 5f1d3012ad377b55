// SPDX-License-Identifier: Apache-2.0

//! Typed access to one map.
//!
//! A [`MapSpec`] says what a map must look like, a [`Map`] is the typed view of a [`RawMap`], which has its entries as
//! bytes: a [`KernelMap`], a [`MemoryMap`] with the kernel's semantics, or one of these below a [`LateMap`] (opened
//! later) and an [`ObservedMap`] (counted). Operations on many entries use the kernel's batch commands and fall back to
//! single calls where a map type has none. Every error names the map and the key.
//!
//! ```no_run
//! use skep_bpf_sys::{Map, MapFlags, MapKind, MapSpec};
//!
//! let spec = MapSpec::<u32, u64>::new("counters", MapKind::Hash, 64, MapFlags::NO_PREALLOC);
//! let map = Map::create(&spec)?;
//! map.update(&7, &1)?;
//! assert_eq!(map.entries()?, [(7, 1)]);
//! # Ok::<(), skep_bpf_sys::MapError>(())
//! ```

#[cfg(feature = "testing")]
pub mod contract;
mod error;
#[cfg(feature = "testing")]
mod faulty;
mod kernel;
mod late;
mod memory;
mod nested;
mod observed;
mod percpu;
mod raw;
mod spec;
#[cfg(test)]
mod tests;

use std::{fmt, marker::PhantomData, mem::size_of, os::fd::OwnedFd, path::Path, sync::Arc};

use zerocopy::{FromBytes, Immutable, IntoBytes};

#[cfg(feature = "testing")]
pub use self::faulty::{Fate, Faults, FaultyMap, InjectedFault, Operation};
pub use self::{
    error::{BatchFailure, Deletion, MapError},
    kernel::KernelMap,
    late::{LateMap, NotOpen},
    memory::MemoryMap,
    nested::{NestedMap, NestedSpec},
    observed::{MapObserver, ObservedMap},
    percpu::{PerCpuMap, cpu_values, possible_cpus},
    raw::{InnerSpec, RawDeletion, RawFailure, RawMap, RawSpec},
    spec::{MapFlags, MapKind, MapSpec, MapTypes, Mismatch},
};
pub use crate::syscall::MapInfo;

/// Types that may be keys and values: plain bytes without padding.
pub trait Plain: FromBytes + IntoBytes + Immutable + Copy + fmt::Debug + Send + Sync + 'static {}

impl<T: FromBytes + IntoBytes + Immutable + Copy + fmt::Debug + Send + Sync + 'static> Plain for T {}

/// A map of `K` to `V`: the typed view of a [`RawMap`], in the kernel or in memory. Clones share the map.
pub struct Map<K, V> {
    raw: Arc<dyn RawMap>,
    types: PhantomData<fn() -> (K, V)>,
}

impl<K, V> Clone for Map<K, V> {
    fn clone(&self) -> Self {
        Self {
            raw: self.raw.clone(),
            types: PhantomData,
        }
    }
}

impl<K, V> fmt::Debug for Map<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Map")
            .field("name", &self.raw.name())
            .field("id", &self.raw.info().id)
            .finish()
    }
}

impl<K: Plain, V: Plain> Map<K, V> {
    /// Creates a map in the kernel that is not pinned anywhere.
    ///
    /// # Errors
    ///
    /// [`MapError::Create`] if the kernel refuses it (memory, privileges, unknown type or flag).
    pub fn create(spec: &MapSpec<K, V>) -> Result<Self, MapError> {
        Self::from_raw(Arc::new(KernelMap::create(spec.raw())?))
    }

    /// Creates a map in memory.
    ///
    /// # Errors
    ///
    /// [`MapError::Create`] for what the kernel would refuse, too.
    pub fn in_memory(spec: &MapSpec<K, V>) -> Result<Self, MapError> {
        Self::from_raw(Arc::new(MemoryMap::create(spec.raw())?))
    }

    /// Opens the map pinned at `path`, whatever its type and size, if keys and values fit the types.
    ///
    /// # Errors
    ///
    /// [`MapError::Open`] if there is none, [`MapError::NotMap`] or [`MapError::Incompatible`] if it is
    /// something else.
    pub fn open(name: &str, path: &Path) -> Result<Self, MapError> {
        Self::from_raw(Arc::new(KernelMap::open(name, path)?))
    }

    /// Takes over the descriptor of a map that was opened elsewhere.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open).
    pub fn from_fd(name: &str, map: OwnedFd) -> Result<Self, MapError> {
        Self::from_raw(Arc::new(KernelMap::from_fd(name, map)?))
    }

    /// The typed view of a map, after comparing the sizes of key and value: every later call relies on it.
    ///
    /// # Errors
    ///
    /// [`MapError::Incompatible`] if keys or values have other sizes, or a key has more than one value.
    pub fn from_raw(raw: Arc<dyn RawMap>) -> Result<Self, MapError> {
        let info = raw.info();
        let mut mismatch = Mismatch::default();
        if spec::is_per_cpu(info.kind) || raw::is_nested(info.kind) {
            mismatch.compare("type", MapKind::Hash as u32, info.kind);
        }
        mismatch.compare("key size", size_of::<K>() as u32, info.key_size);
        mismatch.compare("value size", size_of::<V>() as u32, info.value_size);
        if !mismatch.is_empty() {
            return Err(MapError::Incompatible {
                map: raw.name().to_owned(),
                mismatch,
            });
        }
        Ok(Self {
            raw,
            types: PhantomData,
        })
    }

    pub fn raw(&self) -> &Arc<dyn RawMap> {
        &self.raw
    }

    /// Name of the map, as pinned.
    pub fn name(&self) -> &str {
        self.raw.name()
    }

    /// What the kernel says about it.
    pub fn info(&self) -> MapInfo {
        self.raw.info()
    }

    pub fn max_entries(&self) -> u32 {
        self.raw.info().max_entries
    }

    /// Inserts or replaces an entry.
    ///
    /// # Errors
    ///
    /// [`MapError::Update`]; [`MapError::is_full`] is true if the map is full.
    pub fn update(&self, key: &K, value: &V) -> Result<(), MapError> {
        update_one(&*self.raw, key, value.as_bytes())
    }

    /// Value of an entry, if there is one.
    ///
    /// # Errors
    ///
    /// [`MapError::Lookup`] if the kernel refuses the call.
    pub fn lookup(&self, key: &K) -> Result<Option<V>, MapError> {
        let mut value = None;
        let mut read = |bytes: &[u8]| value = V::read_from_bytes(bytes).ok();
        let found = self.raw.lookup(key.as_bytes(), &mut read);
        found.map_err(|source| MapError::Lookup {
            map: self.name().to_owned(),
            key: format!("{key:?}"),
            source,
        })?;
        Ok(value)
    }

    /// Deletes an entry; false if there was none.
    ///
    /// # Errors
    ///
    /// [`MapError::Delete`] if the kernel refuses the call.
    pub fn delete(&self, key: &K) -> Result<bool, MapError> {
        delete_one(&*self.raw, key)
    }

    /// Inserts or replaces `keys[i]` → `values[i]`, in order, with as few calls as possible. Returns the entries that
    /// failed; all others are written.
    ///
    /// # Panics
    ///
    /// If there are not as many values as keys.
    pub fn update_batch(&self, keys: &[K], values: &[V]) -> Vec<BatchFailure> {
        assert_eq!(keys.len(), values.len(), "as many values as keys");
        let failures = self.raw.update(keys.as_bytes(), values.as_bytes());
        failures
            .into_iter()
            .map(|RawFailure { index, error }| BatchFailure {
                index,
                error: update_error(&*self.raw, &keys[index], error),
            })
            .collect()
    }

    /// Deletes entries with as few calls as possible; keys that are not there are skipped.
    pub fn delete_batch(&self, keys: &[K]) -> Deletion {
        delete_batch(&*self.raw, keys)
    }

    /// Calls `visit` with every entry, in the kernel's order. Entries that come or go meanwhile may or may
    /// not be seen.
    ///
    /// # Errors
    ///
    /// [`MapError::Walk`] if the kernel refuses a call.
    pub fn for_each(&self, mut visit: impl FnMut(K, V)) -> Result<(), MapError> {
        let walked = self.raw.walk(&mut |key, value| {
            if let (Ok(key), Ok(value)) = (K::read_from_bytes(key), V::read_from_bytes(value)) {
                visit(key, value);
            }
        });
        walked.map_err(|source| MapError::Walk {
            map: self.name().to_owned(),
            source,
        })
    }

    /// All entries, in the kernel's order.
    ///
    /// # Errors
    ///
    /// As [`for_each`](Self::for_each).
    pub fn entries(&self) -> Result<Vec<(K, V)>, MapError> {
        let mut entries = Vec::new();
        self.for_each(|key, value| entries.push((key, value)))?;
        Ok(entries)
    }

    /// All keys, in the kernel's order.
    ///
    /// # Errors
    ///
    /// As [`for_each`](Self::for_each).
    pub fn keys(&self) -> Result<Vec<K>, MapError> {
        keys_of(&*self.raw)
    }

    /// Deletes every entry; returns how many there were.
    ///
    /// # Errors
    ///
    /// As [`for_each`](Self::for_each), and [`MapError::Delete`].
    pub fn clear(&self) -> Result<usize, MapError> {
        self.delete_batch(&self.keys()?).all()
    }
}

fn update_one<K: Plain>(map: &dyn RawMap, key: &K, value: &[u8]) -> Result<(), MapError> {
    let failed = map.update(key.as_bytes(), value).into_iter().next();
    failed.map_or(Ok(()), |failure| Err(update_error(map, key, failure.error)))
}

fn delete_one<K: Plain>(map: &dyn RawMap, key: &K) -> Result<bool, MapError> {
    let done = map.delete(key.as_bytes());
    match done.failures.into_iter().next() {
        Some(failure) => Err(delete_error(map, key, failure.error)),
        None => Ok(done.deleted > 0),
    }
}

fn delete_batch<K: Plain>(map: &dyn RawMap, keys: &[K]) -> Deletion {
    let RawDeletion { deleted, failures } = map.delete(keys.as_bytes());
    let failures = failures
        .into_iter()
        .map(|RawFailure { index, error }| BatchFailure {
            index,
            error: delete_error(map, &keys[index], error),
        })
        .collect();
    Deletion { deleted, failures }
}

fn keys_of<K: Plain>(map: &dyn RawMap) -> Result<Vec<K>, MapError> {
    let mut keys = Vec::new();
    let walked = map.walk(&mut |key, _| keys.extend(K::read_from_bytes(key)));
    walked.map_err(|source| MapError::Walk {
        map: map.name().to_owned(),
        source,
    })?;
    Ok(keys)
}

fn read_all<E: Plain>(bytes: &[u8]) -> Vec<E> {
    bytes
        .chunks_exact(size_of::<E>().max(1))
        .filter_map(|element| E::read_from_bytes(element).ok())
        .collect()
}

fn update_error<K: Plain>(map: &dyn RawMap, key: &K, source: std::io::Error) -> MapError {
    MapError::Update {
        map: map.name().to_owned(),
        key: format!("{key:?}"),
        source,
    }
}

fn delete_error<K: Plain>(map: &dyn RawMap, key: &K, source: std::io::Error) -> MapError {
    MapError::Delete {
        map: map.name().to_owned(),
        key: format!("{key:?}"),
        source,
    }
}
