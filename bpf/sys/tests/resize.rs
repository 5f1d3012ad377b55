// SPDX-License-Identifier: Apache-2.0

//! Maps that are resized: entries that programs wrote are copied to the new map.

#![allow(clippy::unwrap_used, reason = "helpers of tests, not only tests, unwrap")]

use std::error::Error;

use skep_bpf_sys::{MapFlags, MapKind, MapStore, RawMap, RawSpec, map::InnerSpec, testing::Node};

type Outcome<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

fn flows(kind: MapKind, max_entries: u32) -> RawSpec {
    RawSpec {
        name: "flows",
        kind,
        key_size: 4,
        value_size: 8,
        max_entries,
        flags: MapFlags::NONE,
        inner: None,
    }
}

fn put(map: &dyn RawMap, key: u32, value: u64) {
    assert!(map.update(&key.to_ne_bytes(), &value.to_ne_bytes()).is_empty());
}

fn get(map: &dyn RawMap, key: u32) -> Option<u64> {
    let mut found = None;
    map.lookup(&key.to_ne_bytes(), &mut |value| {
        found = Some(u64::from_ne_bytes(value.try_into().unwrap()));
    })
    .unwrap();
    found
}

fn run(name: &str, test: impl FnOnce(&Node) -> Outcome + Send + 'static) {
    let result: Outcome = Node::run(name, test);
    if let Err(error) = result {
        panic!("{error}");
    }
}

#[test]
fn flows_survive_another_size_of_their_map() {
    run("resize", |node| {
        let old = node.store().provide(&flows(MapKind::LruHash, 20_000))?;
        for key in 0..10_000 {
            put(&old, key, u64::from(key));
        }

        let store = MapStore::new(node.store().root());
        let hold = store.hold();
        let new = store.provide(&flows(MapKind::LruHash, 40_000))?;

        for key in 0..10_000 {
            assert_eq!(get(&new, key), Some(u64::from(key)));
        }
        // Programs still run with the old map: a flow begins there, and one goes on with the new program.
        put(&old, 10_000, 1);
        put(&new, 5, 500);
        put(&old, 5, 6);
        store.carry_pending()?;
        assert_eq!(get(&new, 10_000), Some(1), "a flow that began before the switch");
        put(&old, 10_001, 1);
        hold.release()?;
        assert_eq!(get(&new, 10_001), Some(1), "a flow that began at the switch");
        assert_eq!(get(&new, 5), Some(500), "what the new programs wrote counts");
        let pinned = MapStore::new(node.store().root()).open_raw("flows")?;
        assert_eq!(pinned.info().id, new.info().id);
        Ok(())
    });
}

#[test]
fn a_smaller_map_keeps_as_many_flows_as_fit() {
    run("resize-smaller", |node| {
        let old = node.store().provide(&flows(MapKind::LruHash, 4_000))?;
        for key in 0..4_000 {
            put(&old, key, 1);
        }

        let new = MapStore::new(node.store().root()).provide(&flows(MapKind::LruHash, 1_000))?;

        let mut entries = 0;
        new.walk(&mut |_, _| entries += 1)?;
        assert!((500..=1_000).contains(&entries), "{entries}");
        Ok(())
    });
}

#[test]
fn entries_that_a_cell_writes_are_copied_once() {
    run("resize-hash", |node| {
        let old = node.store().provide(&flows(MapKind::Hash, 10))?;
        put(&old, 1, 1);
        put(&old, 2, 2);

        let store = MapStore::new(node.store().root());
        let hold = store.hold();
        let new = store.provide(&flows(MapKind::Hash, 20))?;
        assert_eq!((get(&new, 1), get(&new, 2)), (Some(1), Some(2)));
        assert_eq!(
            store.take_carried("flows").map(|carried| carried.entries),
            Some(2)
        );
        // The cell deletes what is stale, before programs are switched.
        assert_eq!(new.delete(&1_u32.to_ne_bytes()).deleted, 1);
        store.carry_pending()?;
        hold.release()?;

        assert_eq!((get(&new, 1), get(&new, 2)), (None, Some(2)));
        Ok(())
    });
}

#[test]
fn entries_that_do_not_fit_are_named() {
    run("resize-full", |node| {
        let old = node.store().provide(&flows(MapKind::Hash, 10))?;
        for key in 0..10 {
            put(&old, key, u64::from(key));
        }

        let store = MapStore::new(node.store().root());
        let new = store.provide(&flows(MapKind::Hash, 6))?;

        let carried = store.take_carried("flows").unwrap();
        assert_eq!((carried.entries, carried.lost.len()), (6, 4));
        for key in &carried.lost {
            let key = u32::from_ne_bytes((&**key).try_into()?);
            assert_eq!((get(&old, key), get(&new, key)), (Some(u64::from(key)), None));
        }
        Ok(())
    });
}

/// Network to number: the bits of the network, then its bytes.
fn prefixes(max_entries: u32) -> RawSpec {
    RawSpec {
        name: "prefixes",
        kind: MapKind::LpmTrie,
        key_size: 8,
        flags: MapFlags::NO_PREALLOC,
        ..flows(MapKind::LpmTrie, max_entries)
    }
}

fn tables(max_entries: u32, bytes: u32) -> RawSpec {
    RawSpec {
        name: "tables",
        kind: MapKind::HashOfMaps,
        value_size: 4,
        inner: Some(InnerSpec::table("table", bytes)),
        ..flows(MapKind::HashOfMaps, max_entries)
    }
}

#[test]
fn networks_and_tables_survive_another_size_of_their_map() {
    run("resize-kinds", |node| {
        let networks = [(0_u32, [0, 0, 0, 0]), (8, [10, 0, 0, 0]), (24, [10, 1, 2, 0])];
        let key = |(bits, bytes): (u32, [u8; 4])| [bits.to_ne_bytes(), bytes].concat();
        let old = node.store().provide(&prefixes(10))?;
        for (at, network) in networks.into_iter().enumerate() {
            assert!(old.update(&key(network), &(at as u64).to_ne_bytes()).is_empty());
        }
        let old = node.store().provide(&tables(10, 16))?;
        assert!(old.update(&7_u32.to_ne_bytes(), &[3; 16]).is_empty());

        let store = MapStore::new(node.store().root());
        let (networks_now, tables_now) = (store.provide(&prefixes(20))?, store.provide(&tables(20, 16))?);

        let mut found = Vec::new();
        networks_now.walk(&mut |key, value| found.push((key.to_vec(), value[0])))?;
        found.sort_by_key(|(_, value)| *value);
        assert_eq!(found, [0, 1, 2].map(|at| (key(networks[at]), at as u8)));
        let mut table = Vec::new();
        tables_now.lookup(&7_u32.to_ne_bytes(), &mut |value| table = value.to_vec())?;
        assert_eq!(table, [3; 16]);

        // Of another size they are made anew.
        let larger = MapStore::new(node.store().root()).provide(&tables(30, 32))?;
        assert!(!larger.lookup(&7_u32.to_ne_bytes(), &mut |_| {})?);
        Ok(())
    });
}
