// SPDX-License-Identifier: Apache-2.0

use std::sync::Arc;

use super::*;
use crate::syscall as sys;
/// A service id: 2 bytes in network order.
type Id = zerocopy::network_endian::U16;

/// An IPv4 prefix of one service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, IntoBytes, FromBytes, Immutable)]
#[repr(C)]
struct Prefix {
    bits: u32,
    address: [u8; 4],
}

fn hash(max: u32) -> MapSpec<Id, [u8; 6]> {
    MapSpec::new(
        "cilium_lb4_reverse_nat",
        MapKind::Hash,
        max,
        MapFlags::NO_PREALLOC,
    )
}

fn nat(n: u16) -> (Id, [u8; 6]) {
    let [high, low] = n.to_be_bytes();
    (Id::new(n), [10, 0, 0, 1, high, low])
}

/// Maps with this much room: as the kernel has them, and as one without batches would.
fn in_and_without_batches(max: u32) -> [Map<Id, [u8; 6]>; 2] {
    let create = || KernelMap::create(hash(max).raw()).unwrap();
    [create(), create().without_batches()].map(|map| Map::from_raw(Arc::new(map)).unwrap())
}

/// Runs every clause of the contract.
fn keeps_contract(make: contract::Make<'_>) {
    for (name, clause) in contract::CLAUSES {
        println!("{name}");
        clause(make).unwrap();
    }
}

#[test]
fn maps_in_memory_keep_the_contract() {
    keeps_contract(&|spec| Ok(Arc::new(MemoryMap::create(spec)?)));
}

#[test]
fn maps_in_the_kernel_keep_the_contract() {
    keeps_contract(&|spec| Ok(Arc::new(KernelMap::create(spec)?)));
}

#[test]
fn maps_in_the_kernel_keep_the_contract_without_batches() {
    keeps_contract(&|spec| Ok(Arc::new(KernelMap::create(spec)?.without_batches())));
}

#[test]
fn maps_that_are_opened_later_keep_the_contract() {
    keeps_contract(&|spec| {
        let late = LateMap::new(*spec);
        let early = late.update(&vec![0; spec.key_size as usize], &vec![0; spec.value_len()]);
        assert!(
            early
                .iter()
                .all(|failure| failure.error.to_string() == "the map is not open yet")
        );
        late.fill(Arc::new(MemoryMap::create(spec)?));
        Ok(Arc::new(late))
    });
}

fn split<K: Copy, V: Copy>(entries: &[(K, V)]) -> (Vec<K>, Vec<V>) {
    entries.iter().copied().unzip()
}

#[test]
fn updates_looks_up_and_deletes() {
    let map = Map::create(&hash(16)).unwrap();
    let (key, value) = nat(7);

    map.update(&key, &value).unwrap();
    assert_eq!(map.lookup(&key).unwrap(), Some(value));
    assert_eq!(map.lookup(&nat(8).0).unwrap(), None);

    assert!(map.delete(&key).unwrap());
    assert!(!map.delete(&key).unwrap());
    assert!(map.entries().unwrap().is_empty());
}

#[test]
fn batches_give_what_single_calls_give() {
    let entries: Vec<_> = (1..=5000).map(nat).collect();
    let (keys, values) = split(&entries);
    for map in in_and_without_batches(8192) {
        assert!(map.update_batch(&keys, &values).is_empty());
        let mut found = map.entries().unwrap();
        found.sort_by_key(|(key, _)| *key);
        let mut expected = entries.clone();
        expected.sort_by_key(|(key, _)| *key);
        assert_eq!(found, expected);

        // Every other key is missing the second time.
        let some: Vec<_> = keys.iter().copied().step_by(2).collect();
        assert_eq!(map.delete_batch(&some).all().unwrap(), 2500);
        assert_eq!(map.delete_batch(&keys).all().unwrap(), 2500);
        assert_eq!(map.clear().unwrap(), 0);
    }
}

#[test]
fn a_batch_is_one_call() {
    let (keys, values) = split(&(1..=1000).map(nat).collect::<Vec<_>>());
    let map = Map::create(&hash(1024)).unwrap();

    let before = sys::calls();
    assert!(map.update_batch(&keys, &values).is_empty());
    map.entries().unwrap();
    assert_eq!(map.delete_batch(&keys).all().unwrap(), 1000);

    // Other tests of this process may call too; a thousand entries never cost a thousand calls.
    assert!(sys::calls() - before < 1000);
}

#[test]
fn full_map_says_which_entries_failed() {
    let (keys, values) = split(&(1..=20).map(nat).collect::<Vec<_>>());
    for map in in_and_without_batches(16) {
        let failures = map.update_batch(&keys, &values);

        let indexes: Vec<usize> = failures.iter().map(|failure| failure.index).collect();
        assert_eq!(indexes, [16, 17, 18, 19]);
        let error = &failures[0].error;
        assert!(error.is_full());
        assert_eq!(error.map(), "cilium_lb4_reverse_nat");
        let text = error.to_string();
        assert!(
            text.starts_with("map cilium_lb4_reverse_nat: cannot update U16(17)"),
            "{text}"
        );
    }
}

#[test]
fn prefixes_are_stored_and_listed() {
    let spec = MapSpec::<Prefix, u8>::new("prefixes", MapKind::LpmTrie, 64, MapFlags::NO_PREALLOC);
    let map = Map::create(&spec).unwrap();
    let prefix = |bits, address| Prefix { bits, address };
    let keys: Vec<_> = (0..40).map(|n| prefix(16, [10, n, 0, 0])).collect();

    assert!(map.update_batch(&keys, &vec![0; keys.len()]).is_empty());
    let mut found = map.keys().unwrap();
    found.sort();
    assert_eq!(found, keys);
    assert_eq!(map.lookup(&prefix(32, [10, 7, 1, 2])).unwrap(), Some(0));
    assert_eq!(map.lookup(&prefix(32, [10, 77, 1, 2])).unwrap(), None);

    assert_eq!(map.delete_batch(&keys).all().unwrap(), 40);
}

#[test]
fn tables_are_swapped_whole() {
    let map = NestedMap::create(&NestedSpec::<Id, u32>::new(
        "tables",
        "table",
        16,
        MapFlags::NONE,
        251,
    ))
    .unwrap();
    let key = Id::new(5);

    map.update(&key, &[1; 251]).unwrap();
    map.update(&key, &[2; 251]).unwrap();
    assert_eq!(map.lookup(&key).unwrap(), Some(vec![2; 251]));
    assert_eq!(map.keys().unwrap(), [key]);

    let wrong = map.update(&key, &[1; 250]).unwrap_err();
    assert!(
        matches!(
            wrong,
            MapError::InnerSize {
                expected: 251,
                found: 250,
                ..
            }
        ),
        "{wrong}"
    );
    assert_eq!(map.keys().unwrap(), [key]);

    assert!(map.delete(&key).unwrap());
    assert_eq!(map.lookup(&key).unwrap(), None);
}

#[test]
fn impossible_map_is_an_error_that_names_it() {
    let spec = MapSpec::<Id, u32>::new("impossible", MapKind::Hash, 0, MapFlags::NONE);

    let error = Map::create(&spec).unwrap_err();

    assert_eq!(
        error.to_string(),
        "map impossible: cannot create it with 0 entries, flags 0x0"
    );
}
