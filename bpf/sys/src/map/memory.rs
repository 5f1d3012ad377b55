// SPDX-License-Identifier: Apache-2.0

//! A map in memory with the kernel's semantics: for nodes without BPF, and for tests.

use std::{collections::BTreeMap, hash::BuildHasher, io};

use hashbrown::{DefaultHashBuilder, HashTable};
use parking_lot::Mutex;

use super::{
    MapError, MapKind, RawDeletion, RawFailure, RawMap, RawSpec,
    kernel::check_len,
    raw::{is_opaque, unsupported},
};
use crate::syscall::MapInfo;

/// A map in memory. It refuses and forgets what the kernel would: a full hash map answers `E2BIG`, a full map of
/// prefixes `ENOSPC`, an LRU map drops the entry that was written longest ago, the entries of an array cannot be
/// deleted.
#[derive(Debug)]
pub struct MemoryMap {
    spec: RawSpec,
    entries: Mutex<Entries>,
}

impl MemoryMap {
    /// Creates an empty map.
    ///
    /// # Errors
    ///
    /// [`MapError::Create`] for what the kernel would refuse: no room, keys without bytes, array keys that are not
    /// indexes, maps of maps without inner maps.
    pub fn create(spec: &RawSpec) -> Result<Self, MapError> {
        let is_array = matches!(
            spec.kind,
            MapKind::Array | MapKind::PerCpuArray | MapKind::ArrayOfMaps
        );
        let is_nested = matches!(spec.kind, MapKind::ArrayOfMaps | MapKind::HashOfMaps);
        let fits = spec.max_entries > 0
            && spec.key_size > 0
            && (!is_array || spec.key_size == 4)
            && (spec.kind != MapKind::LpmTrie || spec.key_size > 4)
            && is_nested == spec.inner.is_some();
        if !fits {
            return Err(MapError::Create {
                map: spec.name.to_owned(),
                max_entries: spec.max_entries,
                flags: spec.flags.bits(),
                source: io::Error::from_raw_os_error(libc::EINVAL),
            });
        }
        let mut entries = Entries::new(spec);
        if is_array && !is_nested {
            let zero = vec![0; spec.value_len()];
            for index in 0..spec.max_entries {
                entries.insert(&index.to_ne_bytes(), &zero);
            }
        }
        Ok(Self {
            spec: *spec,
            entries: Mutex::new(entries),
        })
    }

    fn update_one(&self, entries: &mut Entries, key: &[u8], value: &[u8]) -> io::Result<()> {
        let errno = |code| Err(io::Error::from_raw_os_error(code));
        let max = self.spec.max_entries as usize;
        match self.spec.kind {
            MapKind::Array | MapKind::PerCpuArray | MapKind::ArrayOfMaps if index(key) >= max => {
                return errno(libc::E2BIG);
            }
            MapKind::ProgArray | MapKind::PerfEventArray => return Err(unsupported()),
            MapKind::LpmTrie => {
                let Some(prefix) = masked(key) else {
                    return errno(libc::EINVAL);
                };
                if entries.find(&prefix).is_none() && entries.len() >= max {
                    return errno(libc::ENOSPC);
                }
                entries.insert(&prefix, value);
                return Ok(());
            }
            MapKind::LruHash | MapKind::LruPerCpuHash
                if entries.find(key).is_none() && entries.len() >= max =>
            {
                entries.evict()
            }
            MapKind::Hash | MapKind::PerCpuHash | MapKind::HashOfMaps
                if entries.find(key).is_none() && entries.len() >= max =>
            {
                return errno(libc::E2BIG);
            }
            _ => {}
        }
        entries.insert(key, value);
        Ok(())
    }

    fn delete_one(&self, entries: &mut Entries, key: &[u8]) -> io::Result<bool> {
        match self.spec.kind {
            MapKind::Array | MapKind::PerCpuArray => Err(io::Error::from_raw_os_error(libc::EINVAL)),
            MapKind::ProgArray | MapKind::PerfEventArray => Err(unsupported()),
            MapKind::LpmTrie => match masked(key) {
                Some(prefix) => Ok(entries.remove(&prefix)),
                None => Err(io::Error::from_raw_os_error(libc::EINVAL)),
            },
            _ => Ok(entries.remove(key)),
        }
    }
}

impl RawMap for MemoryMap {
    fn name(&self) -> &str {
        self.spec.name
    }

    fn info(&self) -> MapInfo {
        self.spec.info()
    }

    fn value_len(&self) -> usize {
        self.spec.value_len()
    }

    fn lookup(&self, key: &[u8], read: &mut dyn FnMut(&[u8])) -> io::Result<bool> {
        check_len(key.len(), self.spec.key_size as usize)?;
        if is_opaque(self.spec.kind as u32) {
            return Err(unsupported());
        }
        let entries = self.entries.lock();
        let found = if self.spec.kind == MapKind::LpmTrie {
            longest_prefix(&entries, key)?
        } else {
            entries.find(key)
        };
        if let Some(slot) = found {
            read(entries.value(slot));
        }
        Ok(found.is_some())
    }

    fn update(&self, keys: &[u8], values: &[u8]) -> Vec<RawFailure> {
        let (key_len, value_len) = (self.spec.key_size as usize, self.spec.value_len());
        let mut entries = self.entries.lock();
        let mut failures = Vec::new();
        for (index, key) in keys.chunks_exact(key_len).enumerate() {
            let value = values.get(index * value_len..(index + 1) * value_len);
            let result = value
                .ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))
                .and_then(|value| self.update_one(&mut entries, key, value));
            if let Err(error) = result {
                failures.push(RawFailure { index, error });
            }
        }
        failures
    }

    fn delete(&self, keys: &[u8]) -> RawDeletion {
        let mut entries = self.entries.lock();
        let mut done = RawDeletion::default();
        for (index, key) in keys.chunks_exact(self.spec.key_size as usize).enumerate() {
            match self.delete_one(&mut entries, key) {
                Ok(deleted) => done.deleted += usize::from(deleted),
                Err(error) => done.failures.push(RawFailure { index, error }),
            }
        }
        done
    }

    fn walk(&self, visit: &mut dyn FnMut(&[u8], &[u8])) -> io::Result<()> {
        if is_opaque(self.spec.kind as u32) {
            return Err(unsupported());
        }
        // A copy: the visitor may write the map.
        let entries = self.entries.lock().clone();
        for slot in entries.table.iter() {
            visit(entries.key(*slot), entries.value(*slot));
        }
        Ok(())
    }
}

/// Keys and values one behind the other in one piece of memory, found by hash.
#[derive(Debug, Clone)]
struct Entries {
    key_len: usize,
    value_len: usize,
    hasher: DefaultHashBuilder,
    table: HashTable<usize>,
    data: Vec<u8>,
    free: Vec<usize>,
    /// In LRU maps, when entries were written: slot by time, and time by slot.
    by_time: Option<BTreeMap<u64, usize>>,
    times: Vec<u64>,
    clock: u64,
}

impl Entries {
    fn new(spec: &RawSpec) -> Self {
        Self {
            key_len: spec.key_size as usize,
            value_len: spec.value_len(),
            hasher: DefaultHashBuilder::default(),
            table: HashTable::new(),
            data: Vec::new(),
            free: Vec::new(),
            by_time: matches!(spec.kind, MapKind::LruHash | MapKind::LruPerCpuHash).then(BTreeMap::new),
            times: Vec::new(),
            clock: 0,
        }
    }

    fn len(&self) -> usize {
        self.table.len()
    }

    fn key(&self, slot: usize) -> &[u8] {
        &self.data[slot * (self.key_len + self.value_len)..][..self.key_len]
    }

    fn value(&self, slot: usize) -> &[u8] {
        &self.data[slot * (self.key_len + self.value_len) + self.key_len..][..self.value_len]
    }

    fn find(&self, key: &[u8]) -> Option<usize> {
        let hash = self.hasher.hash_one(key);
        self.table.find(hash, |slot| self.key(*slot) == key).copied()
    }

    fn insert(&mut self, key: &[u8], value: &[u8]) {
        let slot = match self.find(key) {
            Some(slot) => slot,
            None => self.add(key),
        };
        let start = slot * (self.key_len + self.value_len) + self.key_len;
        self.data[start..start + self.value_len].copy_from_slice(value);
        if let Some(by_time) = &mut self.by_time {
            self.clock += 1;
            by_time.remove(&self.times[slot]);
            self.times[slot] = self.clock;
            by_time.insert(self.clock, slot);
        }
    }

    fn add(&mut self, key: &[u8]) -> usize {
        let stride = self.key_len + self.value_len;
        let slot = self.free.pop().unwrap_or_else(|| {
            self.data.resize(self.data.len() + stride, 0);
            self.times.push(0);
            self.times.len() - 1
        });
        self.data[slot * stride..][..self.key_len].copy_from_slice(key);
        let (hasher, data, key_len) = (&self.hasher, &self.data, self.key_len);
        let hash_of = |slot: &usize| hasher.hash_one(&data[slot * stride..][..key_len]);
        self.table.insert_unique(hasher.hash_one(key), slot, hash_of);
        slot
    }

    fn remove(&mut self, key: &[u8]) -> bool {
        let hash = self.hasher.hash_one(key);
        let (data, stride, key_len) = (&self.data, self.key_len + self.value_len, self.key_len);
        let found = self
            .table
            .find_entry(hash, |slot| &data[slot * stride..][..key_len] == key);
        let Ok(found) = found else {
            return false;
        };
        let (slot, _) = found.remove();
        if let Some(by_time) = &mut self.by_time {
            by_time.remove(&self.times[slot]);
        }
        self.free.push(slot);
        true
    }

    /// Removes the entry that was written longest ago.
    fn evict(&mut self) {
        let oldest = self.by_time.as_ref().and_then(|by_time| by_time.values().next());
        if let Some(slot) = oldest.copied() {
            let key = self.key(slot).to_owned();
            self.remove(&key);
        }
    }
}

fn index(key: &[u8]) -> usize {
    key.first_chunk()
        .map_or(usize::MAX, |bytes| u32::from_ne_bytes(*bytes) as usize)
}

/// A prefix without the bits behind it: its length in bits (host order), then the bytes. `None` if it is longer than
/// the key.
fn masked(key: &[u8]) -> Option<Vec<u8>> {
    let bits = index(key);
    let mut prefix = key.to_owned();
    let bytes = prefix.get_mut(4..)?;
    if bits > bytes.len() * 8 {
        return None;
    }
    for (at, byte) in bytes.iter_mut().enumerate() {
        let kept = bits.saturating_sub(at * 8).min(8) as u32;
        *byte &= u8::MAX.checked_shl(8 - kept).unwrap_or(0);
    }
    Some(prefix)
}

fn longest_prefix(entries: &Entries, key: &[u8]) -> io::Result<Option<usize>> {
    let most = (key.len() - 4) * 8;
    if index(key) > most {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    let mut shorter = key.to_owned();
    Ok((0..=index(key) as u32).rev().find_map(|bits| {
        shorter[..4].copy_from_slice(&bits.to_ne_bytes());
        entries.find(&masked(&shorter)?)
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map::MapFlags;

    #[test]
    fn a_full_lru_map_forgets_what_was_written_longest_ago() {
        let spec = RawSpec {
            name: "lru",
            kind: MapKind::LruHash,
            key_size: 1,
            value_size: 1,
            max_entries: 3,
            flags: MapFlags::NONE,
            inner: None,
        };
        let map = MemoryMap::create(&spec).unwrap();

        assert!(map.update(&[1, 2, 3], &[1, 2, 3]).is_empty());
        assert!(map.update(&[1, 4], &[9, 4]).is_empty());

        let mut found = Vec::new();
        map.walk(&mut |key, value| found.push((key[0], value[0])))
            .unwrap();
        found.sort_unstable();
        assert_eq!(found, [(1, 9), (3, 3), (4, 4)]);
    }

    #[test]
    fn bits_behind_a_prefix_do_not_count() {
        let key = |bits: u32, byte: u8| [&bits.to_ne_bytes()[..], &[byte, 0xff]].concat();
        assert_eq!(masked(&key(4, 0xab)).unwrap()[4..], [0xa0, 0]);
        assert_eq!(masked(&key(0, 0xab)).unwrap()[4..], [0, 0]);
        assert_eq!(masked(&key(16, 0xab)).unwrap()[4..], [0xab, 0xff]);
        assert_eq!(masked(&key(17, 0xab)), None);
    }
}
