// SPDX-License-Identifier: Apache-2.0

//! Pinned maps: kept, replaced when they do not fit, read by others.

use std::{fs, process::Command};

use skep_bpf_maps::{
    MapSizes,
    event::METRICS,
    lb::*,
    node::IPCACHE,
    testing::{Frontend, LbMaps},
};
use skep_bpf_programs::{NodeOptions, SocketLb, map_types};
use skep_bpf_sys::{Map, MapError, MapFlags, MapKind, MapSpec, MapStore, testing::Node};

use crate::world::*;

fn id<K: skep_bpf_sys::map::Plain, V: skep_bpf_sys::map::Plain>(map: &Map<K, V>) -> u32 {
    map.info().id
}

fn run(name: &str, test: impl FnOnce(&Node) -> Outcome + Send) {
    if let Err(error) = Node::run(name, test) {
        panic!("{error}: {:?}", error.source());
    }
}

#[test]
fn entries_survive_the_process_that_wrote_them() {
    run("keep", |node| {
        let spec = REVERSE_NAT4.spec(&SIZES.into());
        let (key, value) = (ReverseNatKey::new(1), ReverseNat4::new([10, 96, 0, 1].into(), 80));
        node.store().open_or_create(&spec)?.update(&key, &value)?;

        let reopened = node.store().open_or_create(&spec)?;

        assert_eq!(reopened.lookup(&key)?, Some(value));
        assert!(node.bpf_root().join("tc/globals/cilium_lb4_reverse_nat").exists());
        Ok(())
    });
}

#[test]
fn a_map_of_another_size_is_replaced_at_once_if_nothing_waits() {
    run("resize", |node| {
        let (old, new) = (
            MapSizes::from(LbMapSizes::small(64)),
            MapSizes::from(LbMapSizes::small(128)),
        );
        let before = node.store().open_or_create(&SERVICES4.spec(&old))?;

        let after = node.store().open_or_create(&SERVICES4.spec(&new))?;

        assert_ne!(id(&before), id(&after));
        assert_eq!(after.max_entries(), 128);
        assert_eq!(
            id(&node.store().open_or_create(&SERVICES4.spec(&new))?),
            id(&after)
        );
        assert_eq!(fs::read_dir(node.store().directory())?.count(), 1);
        Ok(())
    });
}

#[test]
fn all_parts_of_a_process_get_the_same_map() {
    run("same", |node| {
        let (one, other) = (
            MapSizes::from(LbMapSizes::small(64)),
            MapSizes::from(LbMapSizes::small(128)),
        );
        let store = node.store();

        let first = store.open_or_create(&SERVICES4.spec(&one))?;
        assert_eq!(id(&store.open_or_create(&SERVICES4.spec(&other))?), id(&first));

        store.unpin(first.name())?;
        assert_eq!(store.open_or_create(&SERVICES4.spec(&other))?.max_entries(), 128);
        Ok(())
    });
}

#[test]
fn a_replaced_map_takes_the_pin_after_the_programs_are_attached() {
    run("takeover", |node| {
        node.add_address(ip("10.244.0.1"))?;
        let backend = tcp_server("10.244.0.1:0");
        let service = Frontend::new(1, at("10.96.0.1:80"), TCP, &[backend]);
        let store = node.store();
        let old = LbMaps::open(&store, SIZES)?;
        old.upsert(&service)?;
        attach(node, &store, &NodeOptions::default())?;
        assert_eq!(ask_tcp(service.address)?.0, backend);

        // Another process with other sizes.
        let store = node.store();
        let sizes = LbMapSizes::small(2048);
        let hold = store.hold();
        let new = LbMaps::open(&store, sizes)?;
        assert_ne!(id(&new.services4), id(&old.services4));
        assert_eq!(
            id(&node
                .store()
                .open::<Service4Key, ServiceValue>("cilium_lb4_services_v2")?),
            id(&old.services4)
        );
        assert_eq!(
            id(&store.open::<Service4Key, ServiceValue>("cilium_lb4_services_v2")?),
            id(&new.services4)
        );
        assert_eq!(ask_tcp(service.address)?.0, backend);

        new.upsert(&service)?;
        let directory = links_directory(node);
        let links = skep_bpf_sys::link::CgroupLinks::new(&directory, node.cgroup_root())?;
        SocketLb::load(&store, sizes, &NodeOptions::default(), |_| true)?.attach(&links, &directory)?;
        hold.release()?;

        assert_eq!(
            id(&node
                .store()
                .open::<Service4Key, ServiceValue>("cilium_lb4_services_v2")?),
            id(&new.services4)
        );
        old.services4.clear()?;
        assert_eq!(ask_tcp(service.address)?.0, backend);
        assert!(
            fs::read_dir(store.directory())?.all(|pin| !pin
                .unwrap()
                .file_name()
                .to_string_lossy()
                .contains(':'))
        );
        Ok(())
    });
}

#[test]
fn an_abandoned_replacement_leaves_the_old_map_in_place() {
    run("abandon", |node| {
        let (old, new) = (
            MapSizes::from(LbMapSizes::small(64)),
            MapSizes::from(LbMapSizes::small(128)),
        );
        let before = node.store().open_or_create(&SERVICES4.spec(&old))?;
        let store = node.store();
        let hold = store.hold();
        store.open_or_create(&SERVICES4.spec(&new))?;
        drop(hold);
        drop(store);

        // The next process finds the old map, and clears what was left.
        assert_eq!(
            id(&node.store().open_or_create(&SERVICES4.spec(&old))?),
            id(&before)
        );
        assert_eq!(fs::read_dir(node.store().directory())?.count(), 1);
        Ok(())
    });
}

#[test]
fn type_key_value_and_flags_make_a_difference() {
    run("differences", |node| {
        let name = "cilium_lb4_reverse_nat";
        let spec = MapSpec::<ReverseNatKey, ReverseNat4>::new(name, MapKind::Hash, 64, MapFlags::NO_PREALLOC);
        let original = id(&node.store().open_or_create(&spec)?);
        assert_eq!(id(&node.store().open_or_create(&spec)?), original);

        let kind = MapSpec::<ReverseNatKey, ReverseNat4>::new(name, MapKind::LruHash, 64, MapFlags::NONE);
        let after_kind = id(&node.store().open_or_create(&kind)?);
        assert_ne!(after_kind, original);
        let flags = MapSpec::<ReverseNatKey, ReverseNat4>::new(name, MapKind::Hash, 64, MapFlags::NONE);
        let after_flags = id(&node.store().open_or_create(&flags)?);
        assert_ne!(after_flags, after_kind);
        let value = MapSpec::<ReverseNatKey, ReverseNat6>::new(name, MapKind::Hash, 64, MapFlags::NONE);
        assert_ne!(id(&node.store().open_or_create(&value)?), after_flags);

        // Readers see the difference, nothing is replaced for them.
        let error = node.store().open::<ReverseNatKey, ReverseNat4>(name).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("map {name}: incompatible: value size 18 instead of 6")
        );
        let error = node
            .store()
            .open::<ReverseNatKey, ReverseNat4>("cilium_nothing")
            .unwrap_err();
        assert!(error.is_missing(), "{error}");
        Ok(())
    });
}

#[test]
fn maps_of_versions_without_the_read_only_flag_are_kept() {
    run("read-only", |node| {
        let wanted = SERVICES4.spec(&SIZES.into());
        let older = MapSpec::<Service4Key, ServiceValue>::new(
            wanted.name(),
            MapKind::Hash,
            wanted.max_entries(),
            MapFlags::NO_PREALLOC,
        );
        let before = node.store().open_or_create(&older)?;

        assert_eq!(id(&node.store().open_or_create(&wanted)?), id(&before));
        Ok(())
    });
}

#[test]
fn another_table_size_replaces_the_maglev_map() {
    run("tables", |node| {
        let (old, mut sizes) = (MapSizes::from(SIZES), SIZES);
        sizes.maglev_table = 509;
        let new = MapSizes::from(sizes);
        node.store()
            .open_or_create_nested(&MAGLEV4.spec(&old))?
            .update(&MaglevKey::new(1), &[7; 251])?;

        let kept = node.store().open_or_create_nested(&MAGLEV4.spec(&old))?;
        assert_eq!(kept.lookup(&MaglevKey::new(1))?, Some(vec![7; 251]));
        assert_eq!(kept.keys()?, [MaglevKey::new(1)]);

        let replaced = node.store().open_or_create_nested(&MAGLEV4.spec(&new))?;
        assert_eq!(replaced.keys()?, []);
        replaced.update(&MaglevKey::new(1), &[7; 509])?;
        let reader = skep_bpf_sys::NestedMap::<MaglevKey, u32>::open(
            "cilium_lb4_maglev",
            &node.store().path("cilium_lb4_maglev"),
        )?;
        assert_eq!(reader.lookup(&MaglevKey::new(1))?, Some(vec![7; 509]));
        Ok(())
    });
}

#[test]
fn pins_can_be_removed() {
    run("unpin", |node| {
        let store = node.store();
        store.open_or_create(&IPCACHE.spec(&MapSizes::default()))?;

        assert!(store.unpin("cilium_ipcache_v2")?);
        assert!(!store.unpin("cilium_ipcache_v2")?);
        Ok(())
    });
}

#[test]
fn removed_pins_of_open_maps_are_made_again() {
    run("repin", |node| {
        let store = node.store();
        let map = store.open_or_create(&SERVICES4.spec(&SIZES.into()))?;
        store.open_or_create(&IPCACHE.spec(&MapSizes::default()))?;
        store.unpin("cilium_ipcache_v2")?;
        assert_eq!(store.pin_missing()?, [""; 0]);

        fs::remove_file(store.path(map.name()))?;
        // Who asks for the map meanwhile gets the same one.
        assert_eq!(
            id(&store.open_or_create(&SERVICES4.spec(&SIZES.into()))?),
            id(&map)
        );
        fs::remove_dir_all(store.directory())?;
        let again = store.pin_missing()?;

        assert_eq!(again, ["cilium_lb4_services_v2"]);
        let pinned = node.store().open::<Service4Key, ServiceValue>(map.name())?;
        assert_eq!(id(&pinned), id(&map));
        assert_eq!(store.pin_missing()?, [""; 0]);
        Ok(())
    });
}

#[test]
fn per_cpu_maps_are_refused_where_one_value_is_expected() {
    run("per-cpu", |node| {
        let store = node.store();
        let spec = METRICS.spec(&MapSizes::default());
        store.provide(spec.raw())?;

        let error = store.open_or_create(&spec).unwrap_err();

        assert!(matches!(error, MapError::Incompatible { .. }), "{error}");
        Ok(())
    });
}

#[test]
fn a_directory_that_cannot_be_made_is_named() {
    let store = MapStore::new("/proc/skep");

    let error = store
        .open_or_create(&IPCACHE.spec(&MapSizes::default()))
        .unwrap_err();

    assert_eq!(
        error.to_string(),
        "cannot create the directory /proc/skep/tc/globals for pinned maps"
    );
}

#[test]
fn bpftool_reads_the_maps() {
    run("bpftool", |node| {
        let maps = LbMaps::open(&node.store(), SIZES)?;
        maps.upsert(&Frontend::new(
            0x0102,
            at("10.96.0.1:80"),
            TCP,
            &[at("10.244.0.1:8080")],
        ))?;

        let dump = Command::new("bpftool")
            .args(["map", "dump", "pinned"])
            .arg(node.store().path("cilium_lb4_services_v2"))
            .output()?;
        let text = String::from_utf8_lossy(&dump.stdout);
        // Address, port, slot, protocol, scope, pad; then count, service id (swapped), flags.
        let master = "0a 60 00 01 00 50 00 00  06 00 00 00";
        let value = "00 00 00 00 01 00 01 02  00 00 00 00";
        let slot = "0a 60 00 01 00 50 01 00  06 00 00 00";
        for expected in [master, value, slot, "Found 2 elements"] {
            assert!(text.contains(expected), "no {expected} in {text}");
        }
        Ok(())
    });
}

/// What `bpftool` prints for a pinned map, with names of fields.
fn dump(node: &Node, map: &str) -> Result<Vec<serde_json::Value>, Box<dyn std::error::Error + Send + Sync>> {
    let output = Command::new("bpftool")
        .args(["--json", "map", "dump", "pinned"])
        .arg(node.store().path(map))
        .output()?;
    let all: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let all = all.as_array().cloned().unwrap_or_default();
    let mut entries: Vec<_> = all.iter().map(|entry| entry["formatted"].clone()).collect();
    entries.sort_by_key(ToString::to_string);
    Ok(entries)
}

#[test]
fn bpftool_names_the_fields_as_the_reference_does() {
    run("bpftool-names", |node| {
        let store = node.store();
        store.describe(map_types()?);
        let maps = LbMaps::open(&store, SIZES)?;
        let mut frontend = Frontend::new(0x0102, at("10.96.0.1:80"), TCP, &[at("10.244.0.1:8080")]);
        frontend.affinity = 600;
        maps.upsert(&frontend)?;
        maps.upsert(&Frontend::new(
            3,
            at("[fd10::1]:80"),
            UDP,
            &[at("[fd00::1]:8080")],
        ))?;
        let port = |port: u16| port.to_be();
        let address = |text: &str| u32::from_ne_bytes(text.parse::<std::net::Ipv4Addr>().unwrap().octets());

        // The layout of the reference, field by field: key, then value, of master and slot.
        let entry = |slot: u16, backend_id: u32, count: u16| {
            serde_json::json!({
                "key": {"address": address("10.96.0.1"), "dport": port(80), "backend_slot": slot, "proto": 6,
                    "scope": 0, "pad": [0, 0]},
                "value": {"backend_id": backend_id, "count": count, "rev_nat_index": port(0x0102), "flags": 16,
                    "flags2": 0, "qcount": 0},
            })
        };
        let mut expected = [entry(0, 600, 1), entry(1, 1, 0)];
        expected.sort_by_key(ToString::to_string);
        assert_eq!(dump(node, "cilium_lb4_services_v2")?, expected);

        assert_eq!(
            dump(node, "cilium_lb4_backends_v3")?,
            [serde_json::json!({
                "key": 1,
                "value": {"address": address("10.244.0.1"), "port": port(8080), "proto": 6, "flags": 0,
                    "cluster_id": 0, "zone": 0, "pad": 0},
            })]
        );
        assert_eq!(
            dump(node, "cilium_lb_affinity_match")?,
            [serde_json::json!({"key": {"backend_id": 1, "rev_nat_id": port(0x0102), "pad": 0}, "value": 0})]
        );
        let services6 = dump(node, "cilium_lb6_services_v2")?;
        assert_eq!(services6.len(), 2);
        assert!(services6.iter().all(|entry| entry["key"]["dport"] == port(80)));
        let backends6 = dump(node, "cilium_lb6_backends_v3")?;
        assert_eq!(backends6[0]["value"]["port"], port(8080));

        // Types are no reason to replace a map, and programs load with described maps.
        let id = maps.services4.info().id;
        attach(node, &store, &NodeOptions::default())?;
        assert_eq!(
            node.store()
                .open_or_create(&SERVICES4.spec(&SIZES.into()))?
                .info()
                .id,
            id
        );
        Ok(())
    });
}
