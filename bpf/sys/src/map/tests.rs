// SPDX-License-Identifier: Apache-2.0

use super::*;
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
    for map in [
        Map::create(&hash(8192)).unwrap(),
        Map::create(&hash(8192)).unwrap().without_batches(),
    ] {
        map.update_batch(&keys, &values).unwrap();
        let mut found = map.entries().unwrap();
        found.sort_by_key(|(key, _)| *key);
        let mut expected = entries.clone();
        expected.sort_by_key(|(key, _)| *key);
        assert_eq!(found, expected);

        // Every other key is missing the second time.
        let some: Vec<_> = keys.iter().copied().step_by(2).collect();
        assert_eq!(map.delete_batch(&some).unwrap(), 2500);
        assert_eq!(map.delete_batch(&keys).unwrap(), 2500);
        assert_eq!(map.clear().unwrap(), 0);
    }
}

#[test]
fn a_batch_is_one_call() {
    let (keys, values) = split(&(1..=1000).map(nat).collect::<Vec<_>>());
    let map = Map::create(&hash(1024)).unwrap();

    let before = sys::calls();
    map.update_batch(&keys, &values).unwrap();
    map.entries().unwrap();
    map.delete_batch(&keys).unwrap();

    // Other tests of this process may call too; a thousand entries never cost a thousand calls.
    assert!(sys::calls() - before < 1000);
}

#[test]
fn full_map_says_which_entry_failed() {
    let (keys, values) = split(&(1..=20).map(nat).collect::<Vec<_>>());
    for map in [
        Map::create(&hash(16)).unwrap(),
        Map::create(&hash(16)).unwrap().without_batches(),
    ] {
        let failed = map.update_batch(&keys, &values).unwrap_err();

        assert_eq!(failed.done, 16);
        assert!(failed.error.is_full());
        assert_eq!(failed.error.map(), "cilium_lb4_reverse_nat");
        let text = failed.error.to_string();
        assert!(
            text.starts_with("map cilium_lb4_reverse_nat: cannot update U16(17)"),
            "{text}"
        );
        assert!(text.contains("17"), "{text}");
    }
}

#[test]
fn prefixes_are_stored_and_listed() {
    let spec = MapSpec::<Prefix, u8>::new("prefixes", MapKind::LpmTrie, 64, MapFlags::NO_PREALLOC);
    let map = Map::create(&spec).unwrap();
    let prefix = |bits, address| Prefix { bits, address };
    let keys: Vec<_> = (0..40).map(|n| prefix(16, [10, n, 0, 0])).collect();

    map.update_batch(&keys, &vec![0; keys.len()]).unwrap();
    let mut found = map.keys().unwrap();
    found.sort();
    assert_eq!(found, keys);
    assert_eq!(map.lookup(&prefix(32, [10, 7, 1, 2])).unwrap(), Some(0));
    assert_eq!(map.lookup(&prefix(32, [10, 77, 1, 2])).unwrap(), None);

    assert_eq!(map.delete_batch(&keys).unwrap(), 40);
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
    assert!(map.accepts_tables().unwrap());
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
