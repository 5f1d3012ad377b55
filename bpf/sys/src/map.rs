// SPDX-License-Identifier: Apache-2.0

//! Typed access to one map over `bpf(2)`.
//!
//! A [`MapSpec`] says what a map must look like, a [`Map`] is an open one. Operations on many entries use
//! the kernel's batch commands and fall back to single calls where a map type has none. Every error names
//! the map and the key.
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

mod error;
mod nested;
mod percpu;
mod spec;
#[cfg(test)]
mod tests;

use std::{
    fmt, io,
    marker::PhantomData,
    mem::size_of,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use zerocopy::{FromBytes, Immutable, IntoBytes};

pub(crate) use self::spec::Shape;
pub use self::{
    error::{BatchError, MapError},
    nested::{NestedMap, NestedSpec},
    percpu::{PerCpuMap, possible_cpus},
    spec::{MapFlags, MapKind, MapSpec, MapTypes, Mismatch},
};
use crate::syscall::{self as sys, MapInfo};

/// Types that may be keys and values: plain bytes without padding.
pub trait Plain: FromBytes + IntoBytes + Immutable + Copy + fmt::Debug + Send + Sync + 'static {}

impl<T: FromBytes + IntoBytes + Immutable + Copy + fmt::Debug + Send + Sync + 'static> Plain for T {}

/// An open map of `K` to `V`. Clones share the descriptor.
pub struct Map<K, V> {
    raw: Arc<RawMap>,
    types: PhantomData<fn() -> (K, V)>,
}

/// The untyped part of a map.
#[derive(Debug)]
pub(crate) struct RawMap {
    pub(crate) name: String,
    pub(crate) fd: OwnedFd,
    pub(crate) info: MapInfo,
    /// Set once the kernel has refused a batch: do not ask again.
    single_only: AtomicBool,
}

impl RawMap {
    pub(crate) fn new(name: &str, fd: OwnedFd) -> Result<Self, MapError> {
        let info = sys::map_info(fd.as_fd()).map_err(|source| MapError::Inspect {
            map: name.to_owned(),
            source,
        })?;
        Ok(Self {
            name: name.to_owned(),
            fd,
            info,
            single_only: AtomicBool::new(false),
        })
    }

    /// Opens the map pinned at `path`.
    pub(crate) fn open(name: &str, path: &Path) -> Result<Self, MapError> {
        let failed = |source| MapError::Open {
            map: name.to_owned(),
            path: path.to_owned(),
            source,
        };
        let fd = sys::obj_get(path).map_err(failed)?;
        if !sys::is_map(fd.as_fd()) {
            return Err(MapError::NotMap {
                map: name.to_owned(),
                path: path.to_owned(),
            });
        }
        Self::new(name, fd)
    }
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
            .field("name", &self.raw.name)
            .field("id", &self.raw.info.id)
            .finish()
    }
}

impl<K, V> AsFd for Map<K, V> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.raw.fd.as_fd()
    }
}

/// Entries fetched or written with one call.
const BATCH: usize = 4096;

impl<K: Plain, V: Plain> Map<K, V> {
    /// Creates a map that is not pinned anywhere.
    ///
    /// # Errors
    ///
    /// [`MapError::Create`] if the kernel refuses it (memory, privileges, unknown type or flag).
    pub fn create(spec: &MapSpec<K, V>) -> Result<Self, MapError> {
        let fd = spec.shape().create(spec.name(), None)?;
        Self::from_raw(RawMap::new(spec.name(), fd)?)
    }

    /// Opens the map pinned at `path`, whatever its type and size, if keys and values fit the types.
    ///
    /// # Errors
    ///
    /// [`MapError::Open`] if there is none, [`MapError::NotMap`] or [`MapError::Incompatible`] if it is
    /// something else.
    pub fn open(name: &str, path: &Path) -> Result<Self, MapError> {
        Self::from_raw(RawMap::open(name, path)?)
    }

    /// Takes over the descriptor of a map that was opened elsewhere.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open).
    pub fn from_fd(name: &str, map: OwnedFd) -> Result<Self, MapError> {
        if !sys::is_map(map.as_fd()) {
            return Err(MapError::NotMap {
                map: name.to_owned(),
                path: PathBuf::new(),
            });
        }
        Self::from_raw(RawMap::new(name, map)?)
    }

    /// Wraps an open map after comparing the sizes of key and value: every later call relies on it.
    pub(crate) fn from_raw(raw: RawMap) -> Result<Self, MapError> {
        let mut mismatch = Mismatch::default();
        if spec::is_per_cpu(raw.info.kind) {
            // A lookup writes one value for each CPU: more than a `V` has room for.
            mismatch.compare("type", MapKind::Hash as u32, raw.info.kind);
        }
        mismatch.compare("key size", size_of::<K>() as u32, raw.info.key_size);
        mismatch.compare("value size", size_of::<V>() as u32, raw.info.value_size);
        if !mismatch.is_empty() {
            return Err(MapError::Incompatible {
                map: raw.name,
                mismatch,
            });
        }
        Ok(Self {
            raw: Arc::new(raw),
            types: PhantomData,
        })
    }

    /// Name of the map, as pinned.
    pub fn name(&self) -> &str {
        &self.raw.name
    }

    /// What the kernel says about it.
    pub fn info(&self) -> &MapInfo {
        &self.raw.info
    }

    /// Most entries it can hold.
    pub fn max_entries(&self) -> u32 {
        self.raw.info.max_entries
    }

    /// Inserts or replaces an entry.
    ///
    /// # Errors
    ///
    /// [`MapError::Update`]; [`MapError::is_full`] tells a full map from other causes.
    pub fn update(&self, key: &K, value: &V) -> Result<(), MapError> {
        sys::map_update(self.as_fd(), key.as_bytes(), value.as_bytes(), 0)
            .map_err(|source| self.update_error(key, source))
    }

    /// Value of an entry, if there is one.
    ///
    /// # Errors
    ///
    /// [`MapError::Lookup`] if the kernel refuses the call.
    pub fn lookup(&self, key: &K) -> Result<Option<V>, MapError> {
        let mut value = V::new_zeroed();
        // SAFETY: `V` is valid for all bit patterns and has no padding (FromBytes + IntoBytes).
        let bytes = unsafe {
            std::slice::from_raw_parts_mut(std::ptr::from_mut(&mut value).cast::<u8>(), size_of::<V>())
        };
        match sys::map_lookup(self.as_fd(), key.as_bytes(), bytes) {
            Ok(()) => Ok(Some(value)),
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(None),
            Err(source) => Err(MapError::Lookup {
                map: self.raw.name.clone(),
                key: format!("{key:?}"),
                source,
            }),
        }
    }

    /// Deletes an entry; false if there was none.
    ///
    /// # Errors
    ///
    /// [`MapError::Delete`] if the kernel refuses the call.
    pub fn delete(&self, key: &K) -> Result<bool, MapError> {
        match sys::map_delete(self.as_fd(), key.as_bytes()) {
            Ok(()) => Ok(true),
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(false),
            Err(source) => Err(MapError::Delete {
                map: self.raw.name.clone(),
                key: format!("{key:?}"),
                source,
            }),
        }
    }

    /// Key after `key` in the kernel's order; the first one for `None`; `None` after the last one.
    ///
    /// # Errors
    ///
    /// [`MapError::Walk`] if the kernel refuses the call.
    pub fn next_key(&self, key: Option<&K>) -> Result<Option<K>, MapError> {
        let mut next = vec![0; size_of::<K>()];
        match sys::map_next_key(self.as_fd(), key.map(IntoBytes::as_bytes), &mut next) {
            Ok(()) => Ok(K::read_from_bytes(&next).ok()),
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(None),
            Err(source) => Err(self.walk_error(source)),
        }
    }

    /// Inserts or replaces `keys[i]` → `values[i]`, in order, with as few calls as possible.
    ///
    /// # Errors
    ///
    /// [`BatchError`] says how many entries were written before the one that failed.
    ///
    /// # Panics
    ///
    /// If there are not as many values as keys.
    pub fn update_batch(&self, keys: &[K], values: &[V]) -> Result<(), BatchError> {
        assert_eq!(keys.len(), values.len(), "as many values as keys");
        let mut done = 0;
        while done < keys.len() {
            let end = keys.len().min(done + BATCH);
            let (keys, values) = (&keys[done..end], &values[done..end]);
            if keys.len() > 1 && self.batches() {
                let (count, result) =
                    sys::map_update_batch(self.as_fd(), keys.as_bytes(), values.as_bytes(), keys.len());
                match result {
                    Ok(()) => {
                        done = end;
                        continue;
                    }
                    Err(error) if self.refuses_batches(&error) => {}
                    Err(source) => {
                        let failed = count.min(keys.len() - 1);
                        let error = self.update_error(&keys[failed], source);
                        return Err(BatchError {
                            done: done + failed,
                            error,
                        });
                    }
                }
            }
            for (key, value) in keys.iter().zip(values) {
                self.update(key, value)
                    .map_err(|error| BatchError { done, error })?;
                done += 1;
            }
        }
        Ok(())
    }

    /// Deletes entries with as few calls as possible; keys that are not there are skipped. Returns how
    /// many entries were deleted.
    ///
    /// # Errors
    ///
    /// [`BatchError`] says how many keys were handled before the one that failed.
    pub fn delete_batch(&self, keys: &[K]) -> Result<usize, BatchError> {
        let (mut done, mut deleted) = (0, 0);
        while done < keys.len() {
            let end = keys.len().min(done + BATCH);
            let chunk = &keys[done..end];
            if chunk.len() > 1 && self.batches() {
                let (count, result) = sys::map_delete_batch(self.as_fd(), chunk.as_bytes(), chunk.len());
                match result {
                    Ok(()) => {
                        deleted += chunk.len();
                        done = end;
                        continue;
                    }
                    Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {
                        // The kernel stops at a key that is not there: go on behind it.
                        deleted += count;
                        done += count + 1;
                        continue;
                    }
                    Err(error) if self.refuses_batches(&error) => {}
                    Err(source) => {
                        let failed = count.min(chunk.len() - 1);
                        let key = format!("{:?}", chunk[failed]);
                        let error = MapError::Delete {
                            map: self.raw.name.clone(),
                            key,
                            source,
                        };
                        return Err(BatchError {
                            done: done + failed,
                            error,
                        });
                    }
                }
            }
            for key in chunk {
                deleted += usize::from(self.delete(key).map_err(|error| BatchError { done, error })?);
                done += 1;
            }
        }
        Ok(deleted)
    }

    /// Calls `visit` with every entry, in the kernel's order. Entries that come or go meanwhile may or may
    /// not be seen.
    ///
    /// # Errors
    ///
    /// [`MapError::Walk`] if the kernel refuses a call.
    pub fn for_each(&self, mut visit: impl FnMut(K, V)) -> Result<(), MapError> {
        if self.batches() {
            match self.walk_batched(&mut visit) {
                Err(MapError::Walk { source, .. }) if self.refuses_batches(&source) => {}
                other => return other,
            }
        }
        // An entry deleted under our feet makes the kernel start over: bound the walk.
        let mut budget = 2 * u64::from(self.max_entries()) + 16;
        let mut key = self.next_key(None)?;
        while let Some(current) = key {
            if let Some(value) = self.lookup(&current)? {
                visit(current, value);
            }
            budget -= 1;
            if budget == 0 {
                return Err(self.walk_error(io::Error::from_raw_os_error(libc::EAGAIN)));
            }
            key = self.next_key(Some(&current))?;
        }
        Ok(())
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
        let mut keys = Vec::new();
        self.for_each(|key, _| keys.push(key))?;
        Ok(keys)
    }

    /// Deletes every entry; returns how many there were.
    ///
    /// # Errors
    ///
    /// As [`for_each`](Self::for_each) and [`delete_batch`](Self::delete_batch).
    pub fn clear(&self) -> Result<usize, MapError> {
        let keys = self.keys()?;
        self.delete_batch(&keys).map_err(|failed| failed.error)
    }

    fn walk_batched(&self, visit: &mut impl FnMut(K, V)) -> Result<(), MapError> {
        let (key_size, value_size) = (size_of::<K>(), size_of::<V>());
        let mut room = BATCH.min(self.max_entries().max(64) as usize);
        let mut keys = vec![0; room * key_size];
        let mut values = vec![0; room * value_size];
        let mut position = vec![0; key_size.max(4)];
        let mut started = false;
        loop {
            let before = position.clone();
            let (count, result) =
                sys::map_lookup_batch(self.as_fd(), &mut position, started, &mut keys, &mut values, room);
            let last = match result {
                Ok(()) => false,
                Err(error) => match error.raw_os_error() {
                    Some(libc::ENOENT) => true,
                    // One hash bucket holds more than there is room for.
                    Some(libc::ENOSPC) => {
                        room *= 2;
                        keys.resize(room * key_size, 0);
                        values.resize(room * value_size, 0);
                        position = before;
                        continue;
                    }
                    _ => return Err(self.walk_error(error)),
                },
            };
            let count = count.min(room);
            for (key, value) in keys
                .chunks_exact(key_size)
                .zip(values.chunks_exact(value_size))
                .take(count)
            {
                if let (Ok(key), Ok(value)) = (K::read_from_bytes(key), V::read_from_bytes(value)) {
                    visit(key, value);
                }
            }
            if last {
                return Ok(());
            }
            started = true;
        }
    }

    fn batches(&self) -> bool {
        !self.raw.single_only.load(Ordering::Relaxed)
    }

    /// Whether the error means that the map type (or the kernel) has no batches; remembered.
    fn refuses_batches(&self, error: &io::Error) -> bool {
        let refused = matches!(
            error.raw_os_error(),
            Some(sys::ENOTSUPP | libc::EOPNOTSUPP | libc::EINVAL | libc::EPERM)
        );
        if refused {
            self.raw.single_only.store(true, Ordering::Relaxed);
        }
        refused
    }

    fn update_error(&self, key: &K, source: io::Error) -> MapError {
        MapError::Update {
            map: self.raw.name.clone(),
            key: format!("{key:?}"),
            source,
        }
    }

    fn walk_error(&self, source: io::Error) -> MapError {
        MapError::Walk {
            map: self.raw.name.clone(),
            source,
        }
    }

    /// Forces single calls, as on a kernel without batches.
    #[cfg(test)]
    pub(crate) fn without_batches(self) -> Self {
        self.raw.single_only.store(true, Ordering::Relaxed);
        self
    }
}
