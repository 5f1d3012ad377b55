// SPDX-License-Identifier: Apache-2.0

//! Hash maps whose values are arrays (the Maglev tables).

use std::{
    fmt,
    marker::PhantomData,
    mem::size_of,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    path::Path,
};

use zerocopy::IntoBytes;

use super::{Map, MapError, MapFlags, MapKind, MapSpec, Mismatch, Plain, RawMap, spec::Shape};
use crate::syscall::{self as sys, MapShape};

/// A hash map of `K` to arrays with one entry, which holds `elements` values of type `E`.
#[derive(Debug, Clone)]
pub struct NestedSpec<K, E> {
    outer: MapSpec<K, u32>,
    inner_name: &'static str,
    elements: u32,
    types: PhantomData<fn() -> E>,
}

impl<K, E> NestedSpec<K, E> {
    /// A map named `name` with room for `max_entries` inner maps named `inner_name`.
    pub const fn new(
        name: &'static str,
        inner_name: &'static str,
        max_entries: u32,
        flags: MapFlags,
        elements: u32,
    ) -> Self {
        Self {
            outer: MapSpec::new(name, MapKind::HashOfMaps, max_entries, flags),
            inner_name,
            elements,
            types: PhantomData,
        }
    }

    /// Name of the outer map and of its pin.
    pub const fn name(&self) -> &'static str {
        self.outer.name()
    }

    /// Elements of one inner map.
    pub const fn elements(&self) -> u32 {
        self.elements
    }

    pub(crate) fn shape(&self) -> Shape {
        self.outer.shape()
    }

    pub(crate) fn inner_shape(&self) -> Shape {
        Shape(MapShape {
            kind: MapKind::Array as u32,
            key_size: 4,
            value_size: self.elements.saturating_mul(size_of::<E>() as u32),
            max_entries: 1,
            flags: 0,
        })
    }

    pub(crate) fn create_inner(&self) -> Result<OwnedFd, MapError> {
        self.inner_shape().create(self.inner_name, None)
    }
}

/// An open map of `K` to arrays of `E`.
///
/// Every update makes a new inner map and swaps it in with one call, so a lookup sees either the old
/// table or the new one.
pub struct NestedMap<K, E> {
    outer: Map<K, u32>,
    spec: NestedSpec<K, E>,
}

impl<K, E> fmt::Debug for NestedMap<K, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.outer.fmt(f)
    }
}

impl<K: Clone, E: Clone> Clone for NestedMap<K, E> {
    fn clone(&self) -> Self {
        Self {
            outer: self.outer.clone(),
            spec: self.spec.clone(),
        }
    }
}

impl<K, E> AsFd for NestedMap<K, E> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.outer.as_fd()
    }
}

impl<K: Plain, E: Plain> NestedMap<K, E> {
    /// Creates a map that is not pinned anywhere.
    ///
    /// # Errors
    ///
    /// [`MapError::Create`] if the kernel refuses it.
    pub fn create(spec: &NestedSpec<K, E>) -> Result<Self, MapError> {
        let inner = spec.create_inner()?;
        let fd = spec.shape().create(spec.name(), Some(inner.as_fd()))?;
        Self::from_raw(RawMap::new(spec.name(), fd)?, spec)
    }

    /// Opens the map pinned at `path` for reading; the size of its tables is taken from the tables.
    ///
    /// # Errors
    ///
    /// As [`Map::open`].
    pub fn open(name: &'static str, path: &Path) -> Result<Self, MapError> {
        let raw = RawMap::open(name, path)?;
        let spec = NestedSpec::new(name, "", raw.info.max_entries, MapFlags::NONE, 0);
        Self::from_raw(raw, &spec)
    }

    pub(crate) fn from_raw(raw: RawMap, spec: &NestedSpec<K, E>) -> Result<Self, MapError> {
        let mut mismatch = Mismatch::default();
        mismatch.compare("type", MapKind::HashOfMaps as u32, raw.info.kind);
        if !mismatch.is_empty() {
            return Err(MapError::Incompatible {
                map: raw.name,
                mismatch,
            });
        }
        Ok(Self {
            outer: Map::from_raw(raw)?,
            spec: NestedSpec {
                types: PhantomData,
                outer: spec.outer.clone(),
                ..*spec
            },
        })
    }

    /// Name of the map, as pinned.
    pub fn name(&self) -> &str {
        self.outer.name()
    }

    /// Most tables it can hold.
    pub fn max_entries(&self) -> u32 {
        self.outer.max_entries()
    }

    /// Elements of one table; 0 if the map was only opened for reading.
    pub fn elements(&self) -> u32 {
        self.spec.elements
    }

    /// Inserts or replaces the table of `key`, atomically.
    ///
    /// # Errors
    ///
    /// [`MapError::InnerSize`] if `table` does not have the length of the specification,
    /// [`MapError::Create`] or [`MapError::Update`] if the kernel refuses a call.
    pub fn update(&self, key: &K, table: &[E]) -> Result<(), MapError> {
        if table.len() != self.spec.elements as usize {
            return Err(MapError::InnerSize {
                map: self.name().to_owned(),
                key: format!("{key:?}"),
                expected: self.spec.elements,
                found: table.len(),
            });
        }
        let failed = |source| MapError::Update {
            map: self.name().to_owned(),
            key: format!("{key:?}"),
            source,
        };
        let inner = self.spec.create_inner()?;
        sys::map_update(inner.as_fd(), &0_u32.to_ne_bytes(), table.as_bytes(), 0).map_err(failed)?;
        self.outer.update(key, &(inner.as_raw_fd() as u32))
    }

    /// The table of `key`, if there is one.
    ///
    /// # Errors
    ///
    /// [`MapError::Lookup`] if the kernel refuses a call.
    pub fn lookup(&self, key: &K) -> Result<Option<Vec<E>>, MapError> {
        let Some(id) = self.outer.lookup(key)? else {
            return Ok(None);
        };
        let failed = |source| MapError::Lookup {
            map: self.name().to_owned(),
            key: format!("{key:?}"),
            source,
        };
        let inner = match sys::map_by_id(id) {
            Ok(inner) => inner,
            // Replaced and freed between the two calls.
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Ok(None),
            Err(error) => return Err(failed(error)),
        };
        let info = sys::map_info(inner.as_fd()).map_err(failed)?;
        let mut table = vec![0; info.value_size as usize];
        sys::map_lookup(inner.as_fd(), &0_u32.to_ne_bytes(), &mut table).map_err(failed)?;
        let elements = table.chunks_exact(size_of::<E>().max(1));
        Ok(Some(
            elements
                .filter_map(|bytes| E::read_from_bytes(bytes).ok())
                .collect(),
        ))
    }

    /// Deletes the table of `key`; false if there was none.
    ///
    /// # Errors
    ///
    /// [`MapError::Delete`] if the kernel refuses the call.
    pub fn delete(&self, key: &K) -> Result<bool, MapError> {
        self.outer.delete(key)
    }

    /// Keys of all tables, in the kernel's order.
    ///
    /// # Errors
    ///
    /// [`MapError::Walk`] if the kernel refuses a call.
    pub fn keys(&self) -> Result<Vec<K>, MapError> {
        let mut keys = Vec::new();
        let mut key = self.outer.next_key(None)?;
        while let Some(current) = key {
            keys.push(current);
            if keys.len() > 2 * self.max_entries() as usize {
                break;
            }
            key = self.outer.next_key(Some(&current))?;
        }
        Ok(keys)
    }

    /// Whether inner maps of the specification's size fit: the kernel fixed that when the outer map was
    /// created, and does not tell. Tries with key 0, which is never in use.
    pub(crate) fn accepts_tables(&self) -> Result<bool, MapError> {
        let inner = self.spec.create_inner()?;
        let probe = vec![0; size_of::<K>()];
        let value = (inner.as_raw_fd() as u32).to_ne_bytes();
        match sys::map_update(self.as_fd(), &probe, &value, 0) {
            Ok(()) => {
                sys::map_delete(self.as_fd(), &probe).map_err(|source| MapError::Delete {
                    map: self.name().to_owned(),
                    key: "the probe entry".to_owned(),
                    source,
                })?;
                Ok(true)
            }
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(false),
            // Full of tables of some size: look at one.
            Err(_) => {
                let Some(key) = self.outer.next_key(None)? else {
                    return Ok(false);
                };
                Ok(self
                    .lookup(&key)?
                    .is_none_or(|table| table.len() == self.spec.elements as usize))
            }
        }
    }
}
