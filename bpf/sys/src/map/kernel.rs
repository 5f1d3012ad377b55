// SPDX-License-Identifier: Apache-2.0

//! A map in the kernel, over `bpf(2)`: batch commands where the map type has them, single calls where not.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
};

use super::{
    InnerSpec, MapError, MapKind, MapTypes, RawDeletion, RawFailure, RawMap, RawSpec,
    raw::{is_nested, is_opaque, unsupported, value_len},
    spec::{self, is_per_cpu},
};
use crate::{
    store::Epoch,
    syscall::{self as sys, MapInfo},
};

/// Entries fetched or written with one call.
const BATCH: usize = 4096;
/// Entries of the first call of a walk; later ones take twice as many each.
const FIRST_BATCH: usize = 128;
/// Values up to this size are read into the stack.
const SMALL_VALUE: usize = 256;

/// An open map in the kernel.
#[derive(Debug)]
pub struct KernelMap {
    name: String,
    fd: OwnedFd,
    info: MapInfo,
    inner: Option<InnerSpec>,
    value_len: usize,
    /// Set once the kernel has refused a batch: do not ask again.
    single_only: AtomicBool,
    /// Of the store: each write raises it.
    epoch: Epoch,
}

impl KernelMap {
    /// Creates a map that is not pinned anywhere.
    ///
    /// # Errors
    ///
    /// [`MapError::Create`] if the kernel refuses it (memory, privileges, unknown type or flag).
    pub fn create(spec: &RawSpec) -> Result<Self, MapError> {
        Self::create_described(spec, None)
    }

    pub(crate) fn create_described(spec: &RawSpec, types: Option<&MapTypes>) -> Result<Self, MapError> {
        let inner = spec.inner.map(|inner| create_inner(&inner)).transpose()?;
        let fd = spec::create(spec, inner.as_ref().map(AsFd::as_fd), types)?;
        Self::new(spec.name, fd, spec.inner)
    }

    /// Opens the map pinned at `path`, whatever it is. The size of inner maps is taken from those that are there.
    ///
    /// # Errors
    ///
    /// [`MapError::Open`] if there is none, [`MapError::NotMap`] if it is something else.
    pub fn open(name: &str, path: &Path) -> Result<Self, MapError> {
        Self::open_with(name, path, None)
    }

    pub(crate) fn open_with(name: &str, path: &Path, inner: Option<InnerSpec>) -> Result<Self, MapError> {
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
        Self::new(name, fd, inner)
    }

    /// Takes over the descriptor of a map that was opened elsewhere.
    ///
    /// # Errors
    ///
    /// [`MapError::NotMap`] if it is something else.
    pub fn from_fd(name: &str, map: OwnedFd) -> Result<Self, MapError> {
        if !sys::is_map(map.as_fd()) {
            return Err(MapError::NotMap {
                map: name.to_owned(),
                path: PathBuf::new(),
            });
        }
        Self::new(name, map, None)
    }

    pub(crate) fn new(name: &str, fd: OwnedFd, inner: Option<InnerSpec>) -> Result<Self, MapError> {
        let failed = |source| MapError::Inspect {
            map: name.to_owned(),
            source,
        };
        let info = sys::map_info(fd.as_fd()).map_err(failed)?;
        let mut map = Self {
            name: name.to_owned(),
            fd,
            info,
            inner,
            value_len: match inner {
                Some(inner) => inner.value_len(),
                None => value_len(info.kind, info.value_size),
            },
            // Of a map of maps, which are no tables, a batch costs one grace period (6.8), and is refused before 5.19.
            single_only: AtomicBool::new(
                is_per_cpu(info.kind) || is_nested(info.kind) && inner.is_none_or(|inner| inner.is_table()),
            ),
            epoch: Epoch::default(),
        };
        if is_nested(info.kind) && inner.is_none() {
            map.value_len = map.first_inner_size().map_err(failed)?;
        }
        Ok(map)
    }

    /// One of several maps of a specification.
    pub(crate) fn named(mut self, name: &str) -> Self {
        name.clone_into(&mut self.name);
        self
    }

    /// Raises this epoch by each write.
    pub(crate) fn raising(mut self, epoch: &Epoch) -> Self {
        self.epoch = epoch.clone();
        self
    }

    /// A second descriptor of the same map.
    pub(crate) fn try_clone_fd(&self) -> io::Result<OwnedFd> {
        self.fd.try_clone()
    }

    fn key_len(&self) -> usize {
        self.info.key_size as usize
    }

    fn first_inner_size(&self) -> io::Result<usize> {
        let mut key = vec![0; self.key_len()];
        let mut size = 0;
        if self.next_key(None, &mut key)? {
            self.lookup(&key, &mut |table| size = table.len())?;
        }
        Ok(size)
    }

    /// Key after `key` in the kernel's order, the first one for `None`; false after the last one.
    fn next_key(&self, key: Option<&[u8]>, next: &mut [u8]) -> io::Result<bool> {
        present(sys::map_next_key(self.fd.as_fd(), key, next))
    }

    fn update_one(&self, key: &[u8], value: &[u8]) -> io::Result<()> {
        let Some(inner) = &self.inner else {
            return sys::map_update(self.fd.as_fd(), key, value, 0);
        };
        if !inner.is_table() {
            return sys::map_update(self.fd.as_fd(), key, value, 0);
        }
        // A new inner map is swapped in with one call: a lookup sees the old table or the new one.
        let table = spec::create_inner(inner)?;
        sys::map_update(table.as_fd(), &0_u32.to_ne_bytes(), value, 0)?;
        let fd = (table.as_raw_fd() as u32).to_ne_bytes();
        sys::map_update(self.fd.as_fd(), key, &fd, 0)
    }

    fn lookup_inner(&self, key: &[u8], read: &mut dyn FnMut(&[u8])) -> io::Result<bool> {
        let mut id = [0; 4];
        if !present(sys::map_lookup(self.fd.as_fd(), key, &mut id))? {
            return Ok(false);
        }
        let inner = match sys::map_by_id(u32::from_ne_bytes(id)) {
            Ok(inner) => inner,
            // Replaced and freed between the two calls.
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Ok(false),
            Err(error) => return Err(error),
        };
        let info = sys::map_info(inner.as_fd())?;
        if info.kind != MapKind::Array as u32 {
            read(&id);
            return Ok(true);
        }
        let mut table = vec![0; info.value_size as usize];
        sys::map_lookup(inner.as_fd(), &0_u32.to_ne_bytes(), &mut table)?;
        read(&table);
        Ok(true)
    }

    /// Whether inner maps of the specification's size fit: the kernel fixed that when the outer map was
    /// created, and does not tell. Tries with key 0, which is never in use.
    pub(crate) fn accepts_inner(&self) -> Result<bool, MapError> {
        let Some(inner) = &self.inner else {
            return Ok(true);
        };
        let table = create_inner(inner)?;
        let probe = vec![0; self.key_len()];
        let value = (table.as_raw_fd() as u32).to_ne_bytes();
        match sys::map_update(self.fd.as_fd(), &probe, &value, 0) {
            Ok(()) => {
                sys::map_delete(self.fd.as_fd(), &probe).map_err(|source| MapError::Delete {
                    map: self.name.clone(),
                    key: "the probe entry".to_owned(),
                    source,
                })?;
                Ok(true)
            }
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(false),
            // Full of tables of some size: look at one.
            Err(_) => {
                let size = self.first_inner_size().map_err(|source| MapError::Walk {
                    map: self.name.clone(),
                    source,
                })?;
                Ok(size == inner.value_len())
            }
        }
    }

    fn walk_batched(&self, visit: &mut dyn FnMut(&[u8], &[u8])) -> io::Result<()> {
        let (key_len, value_len) = (self.key_len(), self.value_len);
        let most = BATCH.min(self.info.max_entries.max(64) as usize);
        // Most maps hold few entries of those that they could.
        let mut room = FIRST_BATCH.min(most);
        let mut keys = vec![0; room * key_len];
        let mut values = vec![0; room * value_len];
        let mut position = vec![0; key_len.max(4)];
        let mut started = false;
        loop {
            let before = position.clone();
            let (count, result) = sys::map_lookup_batch(
                self.fd.as_fd(),
                &mut position,
                started,
                &mut keys,
                &mut values,
                room,
            );
            let last = match result {
                Ok(()) => false,
                Err(error) => match error.raw_os_error() {
                    Some(libc::ENOENT) => true,
                    // One hash bucket holds more than there is room for.
                    Some(libc::ENOSPC) => {
                        room *= 2;
                        keys.resize(room * key_len, 0);
                        values.resize(room * value_len, 0);
                        position = before;
                        continue;
                    }
                    _ => return Err(error),
                },
            };
            for (key, value) in keys
                .chunks_exact(key_len)
                .zip(values.chunks_exact(value_len))
                .take(count)
            {
                visit(key, value);
            }
            if last {
                return Ok(());
            }
            started = true;
            if room < most {
                room = most.min(room * 2);
                keys.resize(room * key_len, 0);
                values.resize(room * value_len, 0);
            }
        }
    }

    fn update_all(&self, keys: &[u8], values: &[u8]) -> Vec<RawFailure> {
        let (key_len, value_len) = (self.key_len(), self.value_len);
        let total = keys.len() / key_len.max(1);
        let mut failures = Vec::new();
        if let Err(error) = check_len(values.len(), total * value_len) {
            return (0..total)
                .map(|index| RawFailure {
                    index,
                    error: io::Error::from(error.kind()),
                })
                .collect();
        }
        let key = |at: usize| &keys[at * key_len..][..key_len];
        let value = |at: usize| &values[at * value_len..][..value_len];
        let mut at = 0;
        while at < total {
            let end = total.min(at + BATCH);
            if end - at > 1 && self.batches() {
                let (count, result) = sys::map_update_batch(
                    self.fd.as_fd(),
                    &keys[at * key_len..end * key_len],
                    &values[at * value_len..end * value_len],
                    end - at,
                );
                match result {
                    Ok(()) => {
                        at = end;
                        continue;
                    }
                    Err(error) if self.refuses_batches(&error) => {}
                    // The kernel stops at an entry that it cannot write: go on behind it.
                    Err(error) => {
                        let index = at + count.min(end - at - 1);
                        failures.push(RawFailure { index, error });
                        at = index + 1;
                        continue;
                    }
                }
            }
            for index in at..end {
                if let Err(error) = self.update_one(key(index), value(index)) {
                    failures.push(RawFailure { index, error });
                }
            }
            at = end;
        }
        failures
    }

    fn delete_all(&self, keys: &[u8]) -> RawDeletion {
        let key_len = self.key_len();
        let total = keys.len() / key_len.max(1);
        let mut done = RawDeletion::default();
        let mut at = 0;
        while at < total {
            let end = total.min(at + BATCH);
            if end - at > 1 && self.batches() {
                let (count, result) =
                    sys::map_delete_batch(self.fd.as_fd(), &keys[at * key_len..end * key_len], end - at);
                match result {
                    Ok(()) => {
                        done.deleted += end - at;
                        at = end;
                        continue;
                    }
                    Err(error) if self.refuses_batches(&error) => {}
                    // The kernel stops at a key that is not there, or cannot be deleted: go on behind it.
                    Err(error) => {
                        let count = count.min(end - at - 1);
                        done.deleted += count;
                        if error.raw_os_error() != Some(libc::ENOENT) {
                            let index = at + count;
                            done.failures.push(RawFailure { index, error });
                        }
                        at += count + 1;
                        continue;
                    }
                }
            }
            for index in at..end {
                match present(sys::map_delete(
                    self.fd.as_fd(),
                    &keys[index * key_len..][..key_len],
                )) {
                    Ok(deleted) => done.deleted += usize::from(deleted),
                    Err(error) => done.failures.push(RawFailure { index, error }),
                }
            }
            at = end;
        }
        done
    }

    fn batches(&self) -> bool {
        !self.single_only.load(Ordering::Relaxed)
    }

    /// Whether the error means that the map type (or the kernel) has no batches; remembered.
    fn refuses_batches(&self, error: &io::Error) -> bool {
        let refused = matches!(
            error.raw_os_error(),
            Some(sys::ENOTSUPP | libc::EOPNOTSUPP | libc::EINVAL | libc::EPERM)
        );
        if refused {
            self.single_only.store(true, Ordering::Relaxed);
        }
        refused
    }

    /// Forces single calls, as on a kernel without batches.
    #[cfg(any(test, feature = "testing"))]
    #[must_use]
    pub fn without_batches(self) -> Self {
        self.single_only.store(true, Ordering::Relaxed);
        self
    }
}

impl RawMap for KernelMap {
    fn name(&self) -> &str {
        &self.name
    }

    fn info(&self) -> MapInfo {
        self.info
    }

    fn value_len(&self) -> usize {
        self.value_len
    }

    fn lookup(&self, key: &[u8], read: &mut dyn FnMut(&[u8])) -> io::Result<bool> {
        check_len(key.len(), self.key_len())?;
        if is_opaque(self.info.kind) {
            return Err(unsupported());
        }
        if is_nested(self.info.kind) {
            return self.lookup_inner(key, read);
        }
        let mut small = [0; SMALL_VALUE];
        let mut large = Vec::new();
        let value = if self.value_len <= SMALL_VALUE {
            &mut small[..self.value_len]
        } else {
            large.resize(self.value_len, 0);
            &mut large[..]
        };
        let found = present(sys::map_lookup(self.fd.as_fd(), key, value))?;
        if found {
            read(value);
        }
        Ok(found)
    }

    fn update(&self, keys: &[u8], values: &[u8]) -> Vec<RawFailure> {
        let _write = self.epoch.write();
        self.update_all(keys, values)
    }

    fn delete(&self, keys: &[u8]) -> RawDeletion {
        let _write = self.epoch.write();
        self.delete_all(keys)
    }

    fn walk(&self, visit: &mut dyn FnMut(&[u8], &[u8])) -> io::Result<()> {
        if is_opaque(self.info.kind) {
            return Err(unsupported());
        }
        if self.batches() {
            match self.walk_batched(visit) {
                Err(error) if self.refuses_batches(&error) => {}
                other => return other,
            }
        }
        // An entry deleted under our feet makes the kernel start over: bound the walk.
        let mut budget = 2 * u64::from(self.info.max_entries) + 16;
        let mut current = vec![0; self.key_len()];
        let mut next = current.clone();
        let mut more = self.next_key(None, &mut current)?;
        while more {
            self.lookup(&current, &mut |value| visit(&current, value))?;
            budget -= 1;
            if budget == 0 {
                return Err(io::Error::from_raw_os_error(libc::EAGAIN));
            }
            more = self.next_key(Some(&current), &mut next)?;
            std::mem::swap(&mut current, &mut next);
        }
        Ok(())
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.fd.as_fd())
    }
}

fn create_inner(inner: &InnerSpec) -> Result<OwnedFd, MapError> {
    spec::create_inner(inner).map_err(|source| MapError::Create {
        map: inner.name.to_owned(),
        max_entries: inner.max_entries,
        flags: inner.flags.bits(),
        source,
    })
}

/// Distinguishes an absent entry from a failure.
fn present(result: io::Result<()>) -> io::Result<bool> {
    match result {
        Ok(()) => Ok(true),
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(false),
        Err(error) => Err(error),
    }
}

/// The kernel reads and writes as many bytes as the map says, not as many as there are.
pub(crate) fn check_len(found: usize, wanted: usize) -> io::Result<()> {
    if found == wanted {
        Ok(())
    } else {
        Err(io::Error::from(io::ErrorKind::InvalidInput))
    }
}
