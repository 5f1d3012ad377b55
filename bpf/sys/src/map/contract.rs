// SPDX-License-Identifier: Apache-2.0

//! What every [`RawMap`] holds to, whether in the kernel or in memory.

use std::{collections::BTreeMap, sync::Arc};

use super::{InnerSpec, MapError, MapFlags, MapKind, RawFailure, RawMap, RawSpec, possible_cpus};

pub type Make<'a> = &'a dyn Fn(&RawSpec) -> Result<Arc<dyn RawMap>, MapError>;

/// A part of the contract: its name, and what checks it.
pub type Clause = (&'static str, fn(Make<'_>) -> Result<(), MapError>);

/// All parts of the contract; each panics if an implementation breaks it.
pub const CLAUSES: [Clause; 9] = [
    ("entries are written, replaced, found and deleted", entries),
    ("large batches are written and deleted whole", batches),
    ("a full hash map refuses new keys and no others", full_hash),
    ("an LRU map never refuses", lru),
    ("a map of prefixes finds the longest one", prefixes),
    ("an array has all its entries always", array),
    ("a per-CPU map has a value for each CPU", per_cpu),
    ("the tables of a map of maps are swapped whole", nested),
    ("impossible maps are refused", impossible),
];

const fn spec(kind: MapKind, key_size: u32, value_size: u32, max_entries: u32) -> RawSpec {
    RawSpec {
        name: "contract",
        kind,
        key_size,
        value_size,
        max_entries,
        flags: match kind {
            MapKind::Hash | MapKind::LpmTrie | MapKind::PerCpuHash => MapFlags::NO_PREALLOC,
            _ => MapFlags::NONE,
        },
        inner: None,
    }
}

fn content(map: &dyn RawMap) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut entries = BTreeMap::new();
    let walked = map.walk(&mut |key, value| {
        let before = entries.insert(key.to_owned(), value.to_owned());
        assert_eq!(before, None, "an entry was visited twice");
    });
    walked.expect("the map can be walked");
    entries
}

fn value(map: &dyn RawMap, key: &[u8]) -> Option<Vec<u8>> {
    let mut value = None;
    let found = map.lookup(key, &mut |bytes| value = Some(bytes.to_owned()));
    assert_eq!(found.expect("a lookup"), value.is_some());
    value
}

fn failed(failures: &[RawFailure]) -> Vec<(usize, Option<i32>)> {
    failures
        .iter()
        .map(|failure| (failure.index, failure.error.raw_os_error()))
        .collect()
}

const NONE: [(usize, Option<i32>); 0] = [];

fn entries(make: Make<'_>) -> Result<(), MapError> {
    let map = make(&spec(MapKind::Hash, 2, 3, 16))?;
    assert_eq!((map.name(), map.value_len()), ("contract", 3));
    let info = map.info();
    assert_eq!((info.key_size, info.value_size, info.max_entries), (2, 3, 16));
    assert_eq!(value(&*map, &[0, 1]), None);

    assert_eq!(failed(&map.update(&[0, 1, 0, 2], &[1, 1, 1, 2, 2, 2])), NONE);
    assert_eq!(failed(&map.update(&[0, 1], &[9, 9, 9])), NONE);
    assert_eq!(value(&*map, &[0, 1]), Some(vec![9, 9, 9]));
    assert_eq!(content(&*map).len(), 2);

    let done = map.delete(&[0, 1, 0, 7, 0, 2]);
    assert_eq!((done.deleted, failed(&done.failures)), (2, vec![]));
    assert_eq!(map.delete(&[0, 1]).deleted, 0);
    assert!(content(&*map).is_empty());
    // Nothing is a batch, too.
    assert_eq!(failed(&map.update(&[], &[])), NONE);
    assert_eq!(map.delete(&[]).deleted, 0);
    Ok(())
}

fn batches(make: Make<'_>) -> Result<(), MapError> {
    let map = make(&spec(MapKind::Hash, 4, 8, 16_384))?;
    let keys: Vec<u8> = (0..10_000_u32).flat_map(u32::to_be_bytes).collect();
    let values: Vec<u8> = (0..10_000_u64).flat_map(u64::to_be_bytes).collect();

    assert_eq!(failed(&map.update(&keys, &values)), NONE);
    let found = content(&*map);
    assert_eq!(found.len(), 10_000);
    assert_eq!(found[&7_u32.to_be_bytes()[..]], 7_u64.to_be_bytes());

    // Every other key is missing the second time.
    let some: Vec<u8> = (0..10_000_u32).step_by(2).flat_map(u32::to_be_bytes).collect();
    assert_eq!(map.delete(&some).deleted, 5000);
    assert_eq!(map.delete(&keys).deleted, 5000);
    Ok(())
}

fn full_hash(make: Make<'_>) -> Result<(), MapError> {
    let map = make(&spec(MapKind::Hash, 1, 1, 4))?;

    // The last but one is there already.
    let failures = map.update(&[1, 2, 3, 4, 5, 1, 6], &[1, 2, 3, 4, 5, 7, 6]);

    assert_eq!(
        failed(&failures),
        [(4, Some(libc::E2BIG)), (6, Some(libc::E2BIG))]
    );
    assert_eq!(value(&*map, &[1]), Some(vec![7]));
    assert_eq!(map.delete(&[2]).deleted, 1);
    assert_eq!(failed(&map.update(&[5], &[5])), NONE);
    Ok(())
}

fn lru(make: Make<'_>) -> Result<(), MapError> {
    let map = make(&spec(MapKind::LruHash, 4, 1, 16))?;
    for key in 0..1000_u32 {
        assert_eq!(failed(&map.update(&key.to_ne_bytes(), &[1])), NONE);
        assert_eq!(value(&*map, &key.to_ne_bytes()), Some(vec![1]));
    }
    assert!((1..=16).contains(&content(&*map).len()));
    Ok(())
}

fn prefixes(make: Make<'_>) -> Result<(), MapError> {
    let map = make(&spec(MapKind::LpmTrie, 8, 1, 3))?;
    let key = |bits: u32, address: [u8; 4]| [bits.to_ne_bytes(), address].concat();
    for (at, entry) in [key(0, [0; 4]), key(8, [10, 0, 0, 0]), key(24, [10, 1, 2, 0])]
        .iter()
        .enumerate()
    {
        assert_eq!(failed(&map.update(entry, &[at as u8])), NONE);
    }

    for (address, expected) in [([192, 0, 2, 1], 0), ([10, 9, 9, 9], 1), ([10, 1, 2, 77], 2)] {
        assert_eq!(value(&*map, &key(32, address)), Some(vec![expected]));
    }
    // Only prefixes that contain the whole key.
    assert_eq!(value(&*map, &key(16, [10, 1, 0, 0])), Some(vec![1]));
    assert_eq!(
        failed(&map.update(&key(32, [1; 4]), &[9])),
        [(0, Some(libc::ENOSPC))]
    );
    assert_eq!(
        failed(&map.update(&key(33, [1; 4]), &[9])),
        [(0, Some(libc::EINVAL))]
    );

    // A deletion is exact, but for the bits behind the prefix.
    assert_eq!(map.delete(&key(25, [10, 1, 2, 0])).deleted, 0);
    assert_eq!(map.delete(&key(24, [10, 1, 2, 99])).deleted, 1);
    assert_eq!(value(&*map, &key(32, [10, 1, 2, 77])), Some(vec![1]));
    assert_eq!(content(&*map).len(), 2);
    Ok(())
}

fn array(make: Make<'_>) -> Result<(), MapError> {
    let map = make(&spec(MapKind::Array, 4, 2, 3))?;
    let index = u32::to_ne_bytes;
    assert_eq!(content(&*map).len(), 3);
    assert_eq!(value(&*map, &index(2)), Some(vec![0, 0]));

    assert_eq!(failed(&map.update(&index(2), &[1, 2])), NONE);
    assert_eq!(value(&*map, &index(2)), Some(vec![1, 2]));
    assert_eq!(failed(&map.update(&index(3), &[1, 2])), [(0, Some(libc::E2BIG))]);
    assert_eq!(value(&*map, &index(3)), None);
    assert_eq!(failed(&map.delete(&index(2)).failures), [(0, Some(libc::EINVAL))]);
    Ok(())
}

fn per_cpu(make: Make<'_>) -> Result<(), MapError> {
    let map = make(&spec(MapKind::PerCpuHash, 1, 4, 2))?;
    let cpus = possible_cpus() as usize;
    // Four bytes a CPU, rounded up.
    assert_eq!(map.value_len(), 8 * cpus);
    let values: Vec<u8> = (0..cpus)
        .flat_map(|cpu| [cpu as u8, 1, 2, 3, 0, 0, 0, 0])
        .collect();

    assert_eq!(failed(&map.update(&[7], &values)), NONE);

    assert_eq!(value(&*map, &[7]), Some(values.clone()));
    assert_eq!(content(&*map), BTreeMap::from([(vec![7], values.clone())]));
    let three = [&values[..], &values, &values].concat();
    assert_eq!(failed(&map.update(&[8, 9, 7], &three)), [(1, Some(libc::E2BIG))]);
    assert_eq!(map.delete(&[7, 8]).deleted, 2);
    Ok(())
}

fn nested(make: Make<'_>) -> Result<(), MapError> {
    let map = make(&RawSpec {
        inner: Some(InnerSpec::table("table", 12)),
        ..spec(MapKind::HashOfMaps, 2, 4, 2)
    })?;
    assert_eq!(map.value_len(), 12);

    assert_eq!(failed(&map.update(&[0, 1], &[1; 12])), NONE);
    assert_eq!(failed(&map.update(&[0, 1], &[2; 12])), NONE);
    assert_eq!(value(&*map, &[0, 1]), Some(vec![2; 12]));
    assert_eq!(
        failed(&map.update(&[0, 2, 0, 3], &[3; 24])),
        [(1, Some(libc::E2BIG))]
    );

    assert_eq!(
        content(&*map),
        BTreeMap::from([(vec![0, 1], vec![2; 12]), (vec![0, 2], vec![3; 12])])
    );
    assert_eq!(map.delete(&[0, 1]).deleted, 1);
    assert_eq!(value(&*map, &[0, 1]), None);
    Ok(())
}

fn impossible(make: Make<'_>) -> Result<(), MapError> {
    for impossible in [
        spec(MapKind::Hash, 4, 4, 0),
        spec(MapKind::Hash, 0, 4, 1),
        spec(MapKind::Array, 2, 4, 1),
        spec(MapKind::LpmTrie, 4, 4, 1),
    ] {
        let error = make(&impossible).err();
        assert!(
            matches!(error, Some(MapError::Create { .. })),
            "{impossible:?}: {error:?}"
        );
    }
    Ok(())
}
