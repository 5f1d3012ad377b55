// SPDX-License-Identifier: Apache-2.0

//! Hash maps with a value for each CPU (the datapath's counters).

use std::{fmt, fs, marker::PhantomData, mem::size_of, path::Path, sync::Arc};

use super::{KernelMap, MapError, Mismatch, Plain, RawMap};

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

/// Bytes that a CPU's value takes: the kernel rounds each up to 8.
pub(crate) fn stride(value_size: usize) -> usize {
    value_size.next_multiple_of(8)
}

/// The values of all CPUs, from the bytes of an entry of a per-CPU map.
pub fn cpu_values<V: Plain>(bytes: &[u8]) -> impl Iterator<Item = V> {
    bytes
        .chunks_exact(stride(size_of::<V>()).max(1))
        .filter_map(|value| V::read_from_prefix(value).ok().map(|(value, _)| value))
}

pub struct PerCpuMap<K, V> {
    raw: Arc<dyn RawMap>,
    types: PhantomData<fn() -> (K, V)>,
}

impl<K, V> fmt::Debug for PerCpuMap<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PerCpuMap").field(&self.raw).finish()
    }
}

impl<K: Plain, V: Plain> PerCpuMap<K, V> {
    /// Opens the map pinned at `path`.
    ///
    /// # Errors
    ///
    /// As [`Map::open`](super::Map::open).
    pub fn open(name: &str, path: &Path) -> Result<Self, MapError> {
        Self::from_raw(Arc::new(KernelMap::open(name, path)?))
    }

    /// The typed view of a per-CPU map.
    ///
    /// # Errors
    ///
    /// [`MapError::Incompatible`] if keys or values have other sizes.
    pub fn from_raw(raw: Arc<dyn RawMap>) -> Result<Self, MapError> {
        let info = raw.info();
        let mut mismatch = Mismatch::default();
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

    /// Name of the map, as pinned.
    pub fn name(&self) -> &str {
        self.raw.name()
    }

    /// Values of an entry, one a CPU; empty if there is no such entry.
    ///
    /// # Errors
    ///
    /// [`MapError::Lookup`] if the kernel refuses the call.
    pub fn lookup(&self, key: &K) -> Result<Vec<V>, MapError> {
        let mut values = Vec::new();
        let mut read = |bytes: &[u8]| values = cpu_values(bytes).collect();
        let found = self.raw.lookup(key.as_bytes(), &mut read);
        found.map_err(|source| MapError::Lookup {
            map: self.name().to_owned(),
            key: format!("{key:?}"),
            source,
        })?;
        Ok(values)
    }

    /// All entries with their values.
    ///
    /// # Errors
    ///
    /// [`MapError::Walk`] if the kernel refuses a call.
    pub fn entries(&self) -> Result<Vec<(K, Vec<V>)>, MapError> {
        let mut entries = Vec::new();
        let walked = self.raw.walk(&mut |key, values| {
            if let Ok(key) = K::read_from_bytes(key) {
                entries.push((key, cpu_values(values).collect()));
            }
        });
        walked.map_err(|source| MapError::Walk {
            map: self.name().to_owned(),
            source,
        })?;
        Ok(entries)
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
