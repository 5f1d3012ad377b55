// SPDX-License-Identifier: Apache-2.0

//! All entries of a map, to be shown.

use std::{io, ops::Range};

use skep_bpf_sys::RawMap;

use crate::Family;

/// Entries of a map of a family, in the order of their keys. Bytes lie one behind the other: a map can be large.
#[derive(Debug)]
pub struct Dump {
    family: &'static Family,
    bytes: Vec<u8>,
    entries: Vec<Range<usize>>,
}

impl Dump {
    pub(crate) fn of(family: &'static Family, map: &dyn RawMap) -> io::Result<Self> {
        let (mut bytes, mut entries) = (Vec::new(), Vec::new());
        map.walk(&mut |key, value| {
            let start = bytes.len();
            bytes.extend_from_slice(key);
            bytes.extend_from_slice(value);
            entries.push(start..bytes.len());
        })?;
        let key = |entry: &Range<usize>| &bytes[entry.start..][..family.key.size as usize];
        entries.sort_by(|one, other| family.order(key(one), key(other)));
        Ok(Self {
            family,
            bytes,
            entries,
        })
    }

    /// Whether a dump failed since user space cannot read the entries of such maps (rings, programs).
    pub fn is_unreadable(error: &io::Error) -> bool {
        error.kind() == io::ErrorKind::Unsupported
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let key_size = self.family.key.size as usize;
        self.entries
            .iter()
            .map(move |entry| self.bytes[entry.clone()].split_at(key_size))
    }

    /// Keys and values as people read them.
    pub fn texts(&self) -> impl Iterator<Item = (String, String)> {
        self.iter()
            .map(|(key, value)| (self.family.key.text(key), self.family.value.text(value)))
    }
}

#[cfg(test)]
mod tests {
    use skep_bpf_sys::{Map, MemoryMap, RawMap};

    use super::*;
    use crate::{MapSizes, event, lb::*, node};

    #[test]
    fn entries_are_in_the_order_of_their_keys() {
        let map = Map::in_memory(&BACKENDS4.spec(&MapSizes::default())).unwrap();
        for id in [300, 2, 255] {
            let backend = Backend4::new([10, 244, 0, 1].into(), id as u16, 6);
            map.update(&BackendKey::new(id), &backend).unwrap();
        }

        let dump = BACKENDS4.family.dump(&**map.raw()).unwrap();

        let texts: Vec<_> = dump
            .texts()
            .map(|(key, value)| format!("{key} {value}"))
            .collect();
        assert_eq!(
            texts,
            [
                "2 TCP://10.244.0.1",
                "255 TCP://10.244.0.1",
                "300 TCP://10.244.0.1"
            ]
        );
    }

    #[test]
    fn tables_counters_and_networks_have_their_forms() {
        let small = MapSizes::default().with(MAGLEV_TABLE_SIZE, 3);
        let map = MemoryMap::create(MAGLEV4.spec(&small).raw()).unwrap();
        let table: Vec<u8> = [7_u32, 8, 9].into_iter().flat_map(u32::to_ne_bytes).collect();
        assert!(map.update(&[0, 4], &table).is_empty());
        let texts: Vec<_> = MAGLEV4.family.dump(&map).unwrap().texts().collect();
        assert_eq!(texts, [("4".to_owned(), "[7 8 9]".to_owned())]);

        let map = MemoryMap::create(event::METRICS.spec(&small).raw()).unwrap();
        let value: Vec<u8> = (0..map.value_len() / 16)
            .flat_map(|_| [[2, 0, 0, 0, 0, 0, 0, 0], [64, 0, 0, 0, 0, 0, 0, 0]].concat())
            .collect();
        let cpus = map.value_len() / 16;
        assert!(map.update(&[5, 3, 0, 0, 0, 0, 0, 0], &value).is_empty());
        let texts: Vec<_> = event::METRICS.family.dump(&map).unwrap().texts().collect();
        let total = format!("{} {}", 2 * cpus, 64 * cpus);
        assert_eq!(
            texts,
            [(
                "LB, sock cgroup: No backend slot entry found SERVICE".to_owned(),
                total
            )]
        );

        let map = Map::in_memory(&node::IPCACHE.spec(&small)).unwrap();
        let key = node::IpcacheKey::prefix("fd00::".parse().unwrap(), 64);
        map.update(&key, &node::IpcacheValue::new(6)).unwrap();
        let texts: Vec<_> = node::IPCACHE.family.dump(&**map.raw()).unwrap().texts().collect();
        let value = "identity=6 encryptkey=0 tunnelendpoint=0.0.0.0 flags=<none>";
        assert_eq!(texts, [("fd00::/64".to_owned(), value.to_owned())]);
    }

    #[test]
    fn rings_cannot_be_read() {
        let map = MemoryMap::create(event::EVENTS.spec(&MapSizes::default()).raw()).unwrap();
        let error = event::EVENTS.family.dump(&map).unwrap_err();
        assert!(Dump::is_unreadable(&error), "{error}");
    }
}
