// SPDX-License-Identifier: Apache-2.0

//! Hash maps with a value for each CPU (the datapath's counters).

use std::{fmt, fs, marker::PhantomData, mem::size_of, os::fd::AsFd, path::Path};

use super::{MapError, Mismatch, Plain, RawMap};
use crate::syscall as sys;

/// Number of CPUs the kernel may ever use: values of a per-CPU map, rings of an event array.
///
/// Read from `/sys/devices/system/cpu/possible`; the number of usable CPUs if that cannot be read.
pub fn possible_cpus() -> u32 {
    let text = fs::read_to_string("/sys/devices/system/cpu/possible").unwrap_or_default();
    last_cpu(&text).map_or_else(
        || std::thread::available_parallelism().map_or(1, |cpus| cpus.get() as u32),
        |last| last + 1,
    )
}

/// Highest number in a CPU list such as `0-3,8`.
fn last_cpu(list: &str) -> Option<u32> {
    list.trim().rsplit([',', '-']).next()?.parse().ok()
}

/// An open per-CPU map, read-only.
pub struct PerCpuMap<K, V> {
    raw: RawMap,
    cpus: usize,
    types: PhantomData<fn() -> (K, V)>,
}

impl<K, V> fmt::Debug for PerCpuMap<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PerCpuMap").field("name", &self.raw.name).finish()
    }
}

impl<K: Plain, V: Plain> PerCpuMap<K, V> {
    /// Opens the map pinned at `path`.
    ///
    /// # Errors
    ///
    /// As [`Map::open`](super::Map::open).
    pub fn open(name: &str, path: &Path) -> Result<Self, MapError> {
        let raw = RawMap::open(name, path)?;
        let mut mismatch = Mismatch::default();
        mismatch.compare("key size", size_of::<K>() as u32, raw.info.key_size);
        mismatch.compare("value size", size_of::<V>() as u32, raw.info.value_size);
        if !mismatch.is_empty() {
            return Err(MapError::Incompatible {
                map: raw.name,
                mismatch,
            });
        }
        Ok(Self {
            raw,
            cpus: possible_cpus() as usize,
            types: PhantomData,
        })
    }

    /// Name of the map, as pinned.
    pub fn name(&self) -> &str {
        &self.raw.name
    }

    /// Values of an entry, one a CPU; empty if there is no such entry.
    ///
    /// # Errors
    ///
    /// [`MapError::Lookup`] if the kernel refuses the call.
    pub fn lookup(&self, key: &K) -> Result<Vec<V>, MapError> {
        // The kernel rounds each CPU's value up to 8 bytes.
        let stride = size_of::<V>().next_multiple_of(8);
        let mut values = vec![0; stride * self.cpus];
        match sys::map_lookup(self.raw.fd.as_fd(), key.as_bytes(), &mut values) {
            Ok(()) => Ok(values
                .chunks_exact(stride)
                .filter_map(|value| V::read_from_prefix(value).ok().map(|(value, _)| value))
                .collect()),
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(Vec::new()),
            Err(source) => Err(MapError::Lookup {
                map: self.raw.name.clone(),
                key: format!("{key:?}"),
                source,
            }),
        }
    }

    /// All entries with their values.
    ///
    /// # Errors
    ///
    /// [`MapError::Walk`] or [`MapError::Lookup`] if the kernel refuses a call.
    pub fn entries(&self) -> Result<Vec<(K, Vec<V>)>, MapError> {
        let mut entries = Vec::new();
        let mut current = vec![0; size_of::<K>()];
        let mut next = vec![0; size_of::<K>()];
        let mut started = false;
        loop {
            let from = started.then_some(&*current);
            match sys::map_next_key(self.raw.fd.as_fd(), from, &mut next) {
                Ok(()) => {}
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Ok(entries),
                Err(source) => {
                    return Err(MapError::Walk {
                        map: self.raw.name.clone(),
                        source,
                    });
                }
            }
            if let Ok(key) = K::read_from_bytes(&next) {
                let values = self.lookup(&key)?;
                if !values.is_empty() {
                    entries.push((key, values));
                }
            }
            if entries.len() > 2 * self.raw.info.max_entries as usize {
                return Ok(entries);
            }
            std::mem::swap(&mut current, &mut next);
            started = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_possible_cpus() {
        assert_eq!(last_cpu("0-7\n"), Some(7));
        assert_eq!(last_cpu("0\n"), Some(0));
        assert_eq!(last_cpu("0-3,8-11"), Some(11));
        assert_eq!(last_cpu(""), None);
        assert!(possible_cpus() >= 1);
    }
}
