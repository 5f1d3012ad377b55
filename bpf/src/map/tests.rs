// SPDX-License-Identifier: Apache-2.0

use super::*;
use crate::lb::*;

fn specs(max: u32) -> LbMapSpecs {
    LbMapSpecs::new(LbMapSizes::small(max))
}

fn nat(n: u16) -> (ReverseNatKey, ReverseNat4) {
    (ReverseNatKey::new(n), ReverseNat4::new([10, 0, 0, 1].into(), n))
}

fn split<K: Copy, V: Copy>(entries: &[(K, V)]) -> (Vec<K>, Vec<V>) {
    entries.iter().copied().unzip()
}

#[test]
fn updates_looks_up_and_deletes() {
    let map = Map::create(&specs(16).reverse_nat4).unwrap();
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
        Map::create(&specs(8192).reverse_nat4).unwrap(),
        Map::create(&specs(8192).reverse_nat4).unwrap().without_batches(),
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
    let map = Map::create(&specs(1024).reverse_nat4).unwrap();

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
        Map::create(&specs(16).reverse_nat4).unwrap(),
        Map::create(&specs(16).reverse_nat4).unwrap().without_batches(),
    ] {
        let failed = map.update_batch(&keys, &values).unwrap_err();

        assert_eq!(failed.done, 16);
        assert!(failed.error.is_full());
        assert_eq!(failed.error.map(), "cilium_lb4_reverse_nat");
        let text = failed.error.to_string();
        assert!(
            text.starts_with("map cilium_lb4_reverse_nat: cannot update ReverseNatKey"),
            "{text}"
        );
        assert!(text.contains("17"), "{text}");
    }
}

#[test]
fn prefixes_are_stored_and_listed() {
    let map = Map::create(&specs(64).source_range4).unwrap();
    let keys: Vec<_> = (0..40)
        .map(|n| SourceRange4Key::new(3, [10, n, 0, 0].into(), 16))
        .collect();

    map.update_batch(&keys, &vec![0; keys.len()]).unwrap();
    let mut found = map.keys().unwrap();
    found.sort();
    assert_eq!(found, keys);
    assert_eq!(
        map.lookup(&SourceRange4Key::new(3, [10, 7, 1, 2].into(), 32))
            .unwrap(),
        Some(0)
    );
    assert_eq!(
        map.lookup(&SourceRange4Key::new(4, [10, 7, 1, 2].into(), 32))
            .unwrap(),
        None
    );

    assert_eq!(map.delete_batch(&keys).unwrap(), 40);
}

#[test]
fn tables_are_swapped_whole() {
    let map = NestedMap::create(&specs(16).maglev4).unwrap();
    let key = MaglevKey::new(5);

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
    let spec = MapSpec::<ReverseNatKey, ReverseNat4>::new("impossible", MapKind::Hash, 0, MapFlags::NONE);

    let error = Map::create(&spec).unwrap_err();

    assert_eq!(
        error.to_string(),
        "map impossible: cannot create it with 0 entries, flags 0x0"
    );
}
