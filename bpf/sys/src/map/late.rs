// SPDX-License-Identifier: Apache-2.0

//! A map that is opened after those who use it were made.

use std::{
    borrow::Cow,
    io,
    os::fd::BorrowedFd,
    sync::{Arc, OnceLock},
};

use super::{RawDeletion, RawFailure, RawMap, RawSpec};
use crate::syscall::MapInfo;

/// A place for a map that is opened later. Until then every operation fails with [`NotOpen`].
#[derive(Debug)]
pub struct LateMap {
    name: Cow<'static, str>,
    spec: RawSpec,
    map: OnceLock<Arc<dyn RawMap>>,
}

/// The map is opened when the program starts, and was not yet.
#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error("the map is not open yet")]
pub struct NotOpen;

impl LateMap {
    /// A place for a map of this specification.
    pub fn new(spec: RawSpec) -> Self {
        Self::named(spec.name, spec)
    }

    /// As [`new`](Self::new), for one of several maps of a specification.
    pub fn named(name: impl Into<Cow<'static, str>>, spec: RawSpec) -> Self {
        Self {
            name: name.into(),
            spec,
            map: OnceLock::new(),
        }
    }

    /// What the map must look like.
    pub fn spec(&self) -> &RawSpec {
        &self.spec
    }

    /// The map, once it is there.
    pub fn get(&self) -> Option<&Arc<dyn RawMap>> {
        self.map.get()
    }

    /// Takes the map; one that is there already stays.
    pub fn fill(&self, map: Arc<dyn RawMap>) {
        let _ = self.map.set(map);
    }

    fn map(&self) -> io::Result<&Arc<dyn RawMap>> {
        self.map.get().ok_or_else(|| io::Error::other(NotOpen))
    }
}

impl RawMap for LateMap {
    fn name(&self) -> &str {
        &self.name
    }

    fn info(&self) -> MapInfo {
        self.map.get().map_or_else(|| self.spec.info(), |map| map.info())
    }

    fn value_len(&self) -> usize {
        self.spec.value_len()
    }

    fn lookup(&self, key: &[u8], read: &mut dyn FnMut(&[u8])) -> io::Result<bool> {
        self.map()?.lookup(key, read)
    }

    fn update(&self, keys: &[u8], values: &[u8]) -> Vec<RawFailure> {
        match self.map.get() {
            Some(map) => map.update(keys, values),
            None => all_failed(keys, self.spec.key_size, || io::Error::other(NotOpen)),
        }
    }

    fn delete(&self, keys: &[u8]) -> RawDeletion {
        match self.map.get() {
            Some(map) => map.delete(keys),
            None => RawDeletion {
                deleted: 0,
                failures: all_failed(keys, self.spec.key_size, || io::Error::other(NotOpen)),
            },
        }
    }

    fn walk(&self, visit: &mut dyn FnMut(&[u8], &[u8])) -> io::Result<()> {
        self.map()?.walk(visit)
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.map.get()?.fd()
    }
}

/// Every key of a batch failed, for the same reason.
pub(crate) fn all_failed(keys: &[u8], key_size: u32, error: impl Fn() -> io::Error) -> Vec<RawFailure> {
    let total = keys.len() / key_size.max(1) as usize;
    let failed = |index| RawFailure {
        index,
        error: error(),
    };
    (0..total).map(failed).collect()
}
