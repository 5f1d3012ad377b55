// SPDX-License-Identifier: Apache-2.0

//! Hash maps whose values are arrays (the Maglev tables).

use std::{fmt, marker::PhantomData, mem::size_of, path::Path, sync::Arc};

use zerocopy::IntoBytes;

use super::{
    BatchFailure, Deletion, InnerSpec, KernelMap, MapError, MapFlags, MapKind, Mismatch, Plain, RawMap,
    RawSpec, delete_batch, delete_one, keys_of, read_all, update_one,
};

/// A hash map of `K` to arrays with one entry, which holds `elements` values of type `E`.
#[derive(Debug)]
pub struct NestedSpec<K, E> {
    raw: RawSpec,
    elements: u32,
    types: PhantomData<fn() -> (K, E)>,
}

impl<K, E> Clone for NestedSpec<K, E> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K, E> Copy for NestedSpec<K, E> {}

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
            raw: RawSpec {
                name,
                kind: MapKind::HashOfMaps,
                key_size: size_of::<K>() as u32,
                value_size: 4,
                max_entries,
                flags,
                inner: Some(InnerSpec::table(
                    inner_name,
                    elements.saturating_mul(size_of::<E>() as u32),
                )),
            },
            elements,
            types: PhantomData,
        }
    }

    /// Name of the outer map and of its pin.
    pub const fn name(&self) -> &'static str {
        self.raw.name
    }

    pub const fn elements(&self) -> u32 {
        self.elements
    }

    pub const fn raw(&self) -> &RawSpec {
        &self.raw
    }
}

/// An open map of `K` to arrays of `E`. Clones share the map.
///
/// Every update makes a new inner map and swaps it in with one call, so a lookup sees either the old
/// table or the new one.
pub struct NestedMap<K, E> {
    raw: Arc<dyn RawMap>,
    types: PhantomData<fn() -> (K, E)>,
}

impl<K, E> fmt::Debug for NestedMap<K, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("NestedMap").field(&self.raw).finish()
    }
}

impl<K, E> Clone for NestedMap<K, E> {
    fn clone(&self) -> Self {
        Self {
            raw: self.raw.clone(),
            types: PhantomData,
        }
    }
}

impl<K: Plain, E: Plain> NestedMap<K, E> {
    /// Creates a map that is not pinned anywhere.
    ///
    /// # Errors
    ///
    /// [`MapError::Create`] if the kernel refuses it.
    pub fn create(spec: &NestedSpec<K, E>) -> Result<Self, MapError> {
        Self::from_raw(Arc::new(KernelMap::create(spec.raw())?))
    }

    /// Opens the map pinned at `path` for reading; the size of its tables is taken from the tables.
    ///
    /// # Errors
    ///
    /// As [`Map::open`](super::Map::open).
    pub fn open(name: &str, path: &Path) -> Result<Self, MapError> {
        Self::from_raw(Arc::new(KernelMap::open(name, path)?))
    }

    /// The typed view of a map of maps.
    ///
    /// # Errors
    ///
    /// [`MapError::Incompatible`] if it is of another type, or its keys have another size.
    pub fn from_raw(raw: Arc<dyn RawMap>) -> Result<Self, MapError> {
        let info = raw.info();
        let mut mismatch = Mismatch::default();
        mismatch.compare("type", MapKind::HashOfMaps as u32, info.kind);
        mismatch.compare("key size", size_of::<K>() as u32, info.key_size);
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

    pub fn max_entries(&self) -> u32 {
        self.raw.info().max_entries
    }

    pub fn elements(&self) -> u32 {
        (self.raw.value_len() / size_of::<E>().max(1)) as u32
    }

    /// Inserts or replaces the table of `key`, atomically.
    ///
    /// # Errors
    ///
    /// [`MapError::InnerSize`] if `table` does not have the length of the specification,
    /// [`MapError::Update`] if the kernel refuses a call.
    pub fn update(&self, key: &K, table: &[E]) -> Result<(), MapError> {
        if table.len() != self.elements() as usize {
            return Err(MapError::InnerSize {
                map: self.name().to_owned(),
                key: format!("{key:?}"),
                expected: self.elements(),
                found: table.len(),
            });
        }
        update_one(&*self.raw, key, table.as_bytes())
    }

    /// Inserts or replaces the tables `keys[i]` → `tables[i]`, in order, each atomically. Returns those that failed; all
    /// others are written.
    ///
    /// # Panics
    ///
    /// If there are not as many tables as keys.
    pub fn update_batch(&self, keys: &[K], tables: &[impl AsRef<[E]>]) -> Vec<BatchFailure> {
        assert_eq!(keys.len(), tables.len(), "as many tables as keys");
        let mut failures = Vec::new();
        // The kernel has no batches for maps of maps.
        for (index, (key, table)) in keys.iter().zip(tables).enumerate() {
            if let Err(error) = self.update(key, table.as_ref()) {
                failures.push(BatchFailure { index, error });
            }
        }
        failures
    }

    /// The table of `key`, if there is one.
    ///
    /// # Errors
    ///
    /// [`MapError::Lookup`] if the kernel refuses a call.
    pub fn lookup(&self, key: &K) -> Result<Option<Vec<E>>, MapError> {
        let mut table = None;
        let found = self
            .raw
            .lookup(key.as_bytes(), &mut |bytes| table = Some(read_all(bytes)));
        found.map_err(|source| MapError::Lookup {
            map: self.name().to_owned(),
            key: format!("{key:?}"),
            source,
        })?;
        Ok(table)
    }

    /// Deletes the table of `key`; false if there was none.
    ///
    /// # Errors
    ///
    /// [`MapError::Delete`] if the kernel refuses the call.
    pub fn delete(&self, key: &K) -> Result<bool, MapError> {
        delete_one(&*self.raw, key)
    }

    /// Deletes tables; keys that are not there are skipped.
    pub fn delete_batch(&self, keys: &[K]) -> Deletion {
        delete_batch(&*self.raw, keys)
    }

    /// Keys of all tables, in the kernel's order.
    ///
    /// # Errors
    ///
    /// [`MapError::Walk`] if the kernel refuses a call.
    pub fn keys(&self) -> Result<Vec<K>, MapError> {
        keys_of(&*self.raw)
    }

    /// Calls `visit` with every table, in the kernel's order.
    ///
    /// # Errors
    ///
    /// [`MapError::Walk`] if the kernel refuses a call.
    pub fn for_each(&self, mut visit: impl FnMut(K, Vec<E>)) -> Result<(), MapError> {
        let walked = self.raw.walk(&mut |key, table| {
            if let Ok(key) = K::read_from_bytes(key) {
                visit(key, read_all(table));
            }
        });
        walked.map_err(|source| MapError::Walk {
            map: self.name().to_owned(),
            source,
        })
    }
}
