// SPDX-License-Identifier: Apache-2.0

//! Maps that are resized: entries that programs wrote are copied to the new map.

#![allow(clippy::unwrap_used, reason = "helpers of tests, not only tests, unwrap")]

use std::error::Error;

use skep_bpf_sys::{MapFlags, MapKind, MapStore, RawMap, RawSpec, testing::Node};

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
        hold.release()?;
        assert_eq!(get(&new, 10_000), Some(1), "a flow that began before the switch");
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
fn entries_that_a_cell_writes_are_not_copied() {
    run("resize-hash", |node| {
        let old = node.store().provide(&flows(MapKind::Hash, 10))?;
        put(&old, 1, 1);

        let new = MapStore::new(node.store().root()).provide(&flows(MapKind::Hash, 20))?;

        assert_eq!(get(&new, 1), None);
        Ok(())
    });
}
