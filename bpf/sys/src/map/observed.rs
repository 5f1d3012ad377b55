// SPDX-License-Identifier: Apache-2.0

//! A map whose writes are reported: to count them, and to keep the last of them.

use std::{io, os::fd::BorrowedFd, sync::Arc};

use super::{RawDeletion, RawFailure, RawMap};
use crate::syscall::MapInfo;

/// Receives the writes of maps, a batch at a time.
pub trait MapObserver: Send + Sync {
    /// Entries were written, except for `failures`.
    fn updated(&self, map: &dyn RawMap, keys: &[u8], values: &[u8], failures: &[RawFailure]);

    /// Entries were deleted, except for `failures`.
    fn deleted(&self, map: &dyn RawMap, keys: &[u8], failures: &[RawFailure]);
}

/// Reports the writes of the map below.
pub struct ObservedMap {
    below: Arc<dyn RawMap>,
    observer: Arc<dyn MapObserver>,
}

impl ObservedMap {
    pub fn new(below: Arc<dyn RawMap>, observer: Arc<dyn MapObserver>) -> Self {
        Self { below, observer }
    }
}

impl std::fmt::Debug for ObservedMap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("ObservedMap").field(&self.below).finish()
    }
}

impl RawMap for ObservedMap {
    fn name(&self) -> &str {
        self.below.name()
    }

    fn info(&self) -> MapInfo {
        self.below.info()
    }

    fn value_len(&self) -> usize {
        self.below.value_len()
    }

    fn lookup(&self, key: &[u8], read: &mut dyn FnMut(&[u8])) -> io::Result<bool> {
        self.below.lookup(key, read)
    }

    fn update(&self, keys: &[u8], values: &[u8]) -> Vec<RawFailure> {
        let failures = self.below.update(keys, values);
        self.observer.updated(&*self.below, keys, values, &failures);
        failures
    }

    fn delete(&self, keys: &[u8]) -> RawDeletion {
        let done = self.below.delete(keys);
        self.observer.deleted(&*self.below, keys, &done.failures);
        done
    }

    fn walk(&self, visit: &mut dyn FnMut(&[u8], &[u8])) -> io::Result<()> {
        self.below.walk(visit)
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.below.fd()
    }
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;

    use super::*;
    use crate::map::{MapFlags, MapKind, MemoryMap, RawSpec};

    #[derive(Default)]
    struct Log(Mutex<Vec<String>>);

    impl MapObserver for Log {
        fn updated(&self, map: &dyn RawMap, keys: &[u8], values: &[u8], failures: &[RawFailure]) {
            let failed: Vec<usize> = failures.iter().map(|failure| failure.index).collect();
            let text = format!("{} {keys:?} = {values:?} but {failed:?}", map.name());
            self.0.lock().push(text);
        }

        fn deleted(&self, map: &dyn RawMap, keys: &[u8], failures: &[RawFailure]) {
            let text = format!("{} without {keys:?}, {} failed", map.name(), failures.len());
            self.0.lock().push(text);
        }
    }

    #[test]
    fn writes_are_reported_with_their_failures() {
        let spec = RawSpec {
            name: "small",
            kind: MapKind::Hash,
            key_size: 1,
            value_size: 1,
            max_entries: 2,
            flags: MapFlags::NONE,
            inner: None,
        };
        let log = Arc::new(Log::default());
        let map = ObservedMap::new(Arc::new(MemoryMap::create(&spec).unwrap()), log.clone());

        map.update(&[1, 2, 3, 1], &[4, 5, 6, 7]);
        map.delete(&[1, 9]);

        assert_eq!(
            *log.0.lock(),
            [
                "small [1, 2, 3, 1] = [4, 5, 6, 7] but [2]",
                "small without [1, 9], 0 failed"
            ]
        );
    }
}
