// SPDX-License-Identifier: Apache-2.0

//! What a restart, a full map and faults leave.

use std::collections::BTreeSet;

use hive::{Cell, Hive, Jobs, Settings};
use skep_bpf_sys::map::{Fate, FaultyMap, Operation};
use skep_bpf_sys::{MapFlags, MapKind, MapSpec};
use skep_datapath_maps::Maps;
use statedb::reconciler::{BatchOps as _, Round, StatusKind};
use statedb::{Change, ReadTxn};

use super::*;

#[tokio::test]
async fn leftovers_go_only_when_all_sources_have_delivered() {
    let world = World::start_without_map();
    let guard = world.writer.register_source("test").unwrap();
    world.open(&[("10.9.9.9", 6), ("10.9.0.0/16", 2), ("10.0.2.8", 300)]);
    world.upsert("10.0.2.8", number(Source::Local, "a", 301));
    world
        .expect(&[
            "10.9.9.9/32 identity=6",
            "10.9.0.0/16 identity=2",
            "10.0.2.8/32 identity=301",
        ])
        .await;

    let mut txn = world.writer.write();
    guard.done(&mut txn).unwrap();
    txn.commit();

    world.expect(&["10.0.2.8/32 identity=301"]).await;
    world.end().await;
}

// A node that runs the API server has both labels: that of one source alone is another identity, or none.
#[tokio::test]
async fn entries_of_the_run_before_stay_until_all_labels_are_known() {
    for first in [Reserved::KubeApiserver, Reserved::RemoteNode] {
        let world = World::start_without_map();
        let guard = world.writer.register_source("test").unwrap();
        world.open(&[("10.0.0.2", 7), ("10.0.0.3", 6)]);
        world.upsert("10.0.0.2", label(Source::KubeApiserver, "first", first));
        let gone = label(Source::Kubernetes, "gone", Reserved::RemoteNode);
        world.upsert("10.0.0.3", gone.clone());
        world.delete("10.0.0.3", &gone.owner);
        // Written last: the map has all that was before.
        world.upsert("10.0.0.9", label(Source::Kubernetes, "new", Reserved::RemoteNode));
        world
            .expect(&[
                "10.0.0.2/32 identity=7",
                "10.0.0.3/32 identity=6",
                "10.0.0.9/32 identity=6",
            ])
            .await;

        world.upsert(
            "10.0.0.2",
            label(Source::Kubernetes, "second", Reserved::RemoteNode),
        );
        let mut txn = world.writer.write();
        guard.done(&mut txn).unwrap();
        txn.commit();

        let then = if first == Reserved::RemoteNode { 6 } else { 7 };
        let wanted = format!("10.0.0.2/32 identity={then}");
        world.expect(&[&wanted, "10.0.0.9/32 identity=6"]).await;
        world.end().await;
    }
}

#[tokio::test]
async fn writes_before_the_map_is_open_are_repeated() {
    let world = World::start_without_map();
    world.upsert("10.0.2.8", number(Source::Local, "a", 300));
    world.expect_status("10.0.2.8", StatusKind::Error).await;

    world.open(&[]);

    world.expect(&["10.0.2.8/32 identity=300"]).await;
    world.expect_status("10.0.2.8", StatusKind::Done).await;
    world.end().await;
}

#[tokio::test]
async fn prune_writes_what_others_have_changed_or_deleted() {
    let world = World::start();
    world.upsert("10.0.2.8", number(Source::Local, "a", 300));
    world.upsert("10.0.2.9", number(Source::Local, "a", 301));
    world.upsert("10.0.2.9/32", number(Source::Generated, "b", 302));
    world
        .expect(&["10.0.2.8/32 identity=300", "10.0.2.9/32 identity=301"])
        .await;
    world.stop.cancel();

    world
        .map
        .update(&prefix("10.0.2.8").map_key(), &IpcacheValue::new(1))
        .unwrap();
    world.map.delete(&prefix("10.0.2.9").map_key()).unwrap();
    let table = world.writer.table();
    let mut ops = MapOps::new(table.clone(), world.map.clone());
    let snapshot = world.writer.db().read();
    let round = Round::new(&snapshot, &world.stop);
    ops.prune(&round, &mut table.all(&snapshot)).unwrap();

    world
        .expect(&["10.0.2.8/32 identity=300", "10.0.2.9/32 identity=301"])
        .await;
    world.end().await;
}

#[tokio::test]
async fn full_map_fails_the_entries_that_do_not_fit_until_there_is_room() {
    let spec = MapSpec::<skep_bpf_maps::node::IpcacheKey, IpcacheValue>::new(
        "cilium_ipcache_v2",
        MapKind::LpmTrie,
        2,
        MapFlags::NO_PREALLOC,
    );
    let raw: Arc<dyn RawMap> = Arc::new(MemoryMap::create(spec.raw()).unwrap());
    let world = World::start_on(raw, Arc::new(LateMap::new(*spec.raw())));

    world.upsert("10.0.0.1", number(Source::Local, "a", 301));
    world.upsert("10.0.0.2", number(Source::Local, "a", 302));
    world
        .expect(&["10.0.0.1/32 identity=301", "10.0.0.2/32 identity=302"])
        .await;
    world.upsert("10.0.0.3", number(Source::Local, "a", 303));
    world.expect_status("10.0.0.3", StatusKind::Error).await;
    let table = world.writer.table();
    let row = table
        .get(
            &world.writer.db().read(),
            IpcacheEntry::BY_PREFIX.key(&prefix("10.0.0.3")),
        )
        .cloned()
        .unwrap();
    assert!(
        row.status
            .error_text()
            .contains("map cilium_ipcache_v2 is full (2 entries)"),
        "{}",
        row.status
    );
    world.delete("10.0.0.1", &owner(Source::Local, "a"));

    world
        .expect(&["10.0.0.2/32 identity=302", "10.0.0.3/32 identity=303"])
        .await;
    world.end().await;
}

#[tokio::test]
async fn entries_are_written_before_others_are_deleted() {
    let log: Arc<parking_lot::Mutex<Vec<Operation>>> = Arc::default();
    let kept = log.clone();
    let below: Arc<dyn RawMap> =
        Arc::new(MemoryMap::create(IPCACHE.spec(&MapSizes::default()).raw()).unwrap());
    let note = move |operation, _: &[u8]| {
        kept.lock().push(operation);
        Fate::Passes
    };
    let raw = Arc::new(FaultyMap::decided_by(below, note));
    let late = Arc::new(LateMap::new(*IPCACHE.spec(&MapSizes::default()).raw()));
    let world = World::start_on(raw, late);
    world.upsert("10.0.0.0/16", number(Source::Generated, "wide", 300));
    world.expect(&["10.0.0.0/16 identity=300"]).await;
    log.lock().clear();

    let mut txn = world.writer.write();
    world
        .writer
        .delete(&mut txn, prefix("10.0.0.0/16"), &owner(Source::Generated, "wide"))
        .unwrap();
    for text in ["10.0.0.0/17", "10.0.128.0/17"] {
        world
            .writer
            .upsert(&mut txn, prefix(text), number(Source::Generated, "narrow", 301))
            .unwrap();
    }
    txn.commit();

    world
        .expect(&["10.0.0.0/17 identity=301", "10.0.128.0/17 identity=301"])
        .await;
    let log: Vec<Operation> = log.lock().clone();
    let writes: Vec<&Operation> = log
        .iter()
        .filter(|operation| matches!(operation, Operation::Update | Operation::Delete))
        .collect();
    assert!(
        matches!(
            writes[..],
            [Operation::Update, Operation::Update, Operation::Delete]
        ),
        "{writes:?}"
    );
    world.end().await;
}

/// The cell, on maps in memory that have an entry already.
async fn start_cell() -> (hive::Running, Writer, Arc<IpcacheMap>) {
    let cells: Vec<Cell> = vec![
        statedb::cell(),
        skep_base_settings::cell(),
        skep_datapath_maps::in_memory_cell(),
        crate::cell(),
        Cell::module("leftover", "An entry from before a restart").run(|maps: Arc<Maps>| {
            let map = maps.handle(&IPCACHE);
            map.update(&prefix("10.9.9.9").map_key(), &IpcacheValue::new(6))
        }),
    ];
    let hive = Hive::new(cells).root::<Writer>().root::<Arc<IpcacheMap>>();
    let running = hive::testing::start_with(hive, Settings::new()).await;
    let (writer, map) = (
        running.get::<Writer>().unwrap(),
        running.get::<Arc<IpcacheMap>>().unwrap(),
    );
    (running, writer, map)
}

#[tokio::test(start_paused = true)]
async fn sources_that_are_late_are_given_up() {
    let (running, writer, map) = start_cell().await;
    let guard = writer.register_source("mesh").unwrap();
    let is_left = || map.lookup(&prefix("10.9.9.9").map_key()).unwrap().is_some();

    tokio::time::sleep(Duration::from_secs(59)).await;
    assert!(is_left());
    let table = writer.table();
    assert_eq!(table.pending_initializers(&writer.db().read()), ["mesh"]);
    tokio::time::timeout(Duration::from_secs(10), table.wait_initialized(writer.db()))
        .await
        .unwrap();
    tokio::time::timeout(Duration::from_secs(10), async {
        while is_left() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await
    .unwrap();

    let health = |text: &'static str| {
        let health = running.health();
        async move {
            let is_reported = || {
                health
                    .entries()
                    .iter()
                    .any(|entry| format!("{entry:?}").contains(text))
            };
            let wait = async {
                while !is_reported() {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            };
            tokio::time::timeout(Duration::from_secs(10), wait).await.unwrap();
        }
    };
    health("no first list of mesh for table ipcache").await;

    // Late is better than never.
    let mut txn = writer.write();
    guard.done(&mut txn).unwrap();
    txn.commit();
    health("All sources are initialized").await;
    hive::testing::stop(running).await;
}

#[tokio::test(start_paused = true)]
async fn each_source_has_its_own_time() {
    let (running, writer, _) = start_cell().await;
    let names = || writer.table().pending_initializers(&writer.db().read());
    let first = writer.register_source("first").unwrap();
    tokio::time::sleep(Duration::from_secs(40)).await;
    let _second = writer.register_source("second").unwrap();

    assert!(writer.register_source("second").is_err());
    let mut txn = writer.write();
    first.done(&mut txn).unwrap();
    txn.commit();
    tokio::time::sleep(Duration::from_secs(50)).await;
    assert_eq!(names(), ["second"]);
    assert_eq!(first.name(), "first");
    tokio::time::sleep(Duration::from_secs(11)).await;

    assert_eq!(names(), [""; 0]);
    hive::testing::stop(running).await;
}

#[tokio::test(start_paused = true)]
async fn the_time_of_a_source_begins_when_the_program_does() {
    let writer = Writer::with_table(&Db::new()).unwrap();
    let names = || writer.table().pending_initializers(&writer.db().read());
    let _early = writer.register_source("early").unwrap();
    tokio::time::sleep(Duration::from_secs(40)).await;
    let sources = writer.sources().clone();
    let start = move |jobs: Jobs| sources.spawn(Duration::from_secs(60), &jobs);
    let running = hive::testing::start(Hive::new([Cell::module("sources", "Awaited").run(start)])).await;

    tokio::time::sleep(Duration::from_secs(59)).await;
    assert_eq!(names(), ["early"]);
    tokio::time::sleep(Duration::from_secs(2)).await;

    assert_eq!(names(), [""; 0]);
    hive::testing::stop(running).await;
}

// A refresh writes every entry again, with clusters of a mesh some 100,000.
#[tokio::test(start_paused = true)]
async fn entries_are_repaired_by_pruning_and_not_refreshed() {
    let (running, ..) = start_cell().await;

    let jobs = running.controller().jobs();
    let of_cell = jobs.iter().filter(|job| job.module.to_string() == "ipcache");
    let names: BTreeSet<String> = of_cell.map(|job| job.name.to_string()).collect();
    assert_eq!(
        names,
        BTreeSet::from(["await-sources", "reconcile"].map(str::to_owned))
    );
    hive::testing::stop(running).await;
}

#[tokio::test]
async fn readers_follow_what_becomes_of_prefixes() {
    let writer = Writer::with_table(&Db::new()).unwrap();
    let table = writer.table();
    let mut txn = writer.write();
    writer
        .upsert(&mut txn, prefix("10.0.0.1"), number(Source::Local, "a", 300))
        .unwrap();
    let snapshot = txn.commit();

    fn identities(table: &statedb::Table<IpcacheEntry>, txn: &impl ReadTxn) -> BTreeSet<u32> {
        let rows = table.all(txn);
        rows.map(|row| row.resolve().unwrap().identity.get()).collect()
    }
    assert_eq!(identities(&table, &snapshot), BTreeSet::from([300]));
    let mut changes = table.follow(writer.db());
    let seen: Vec<Change<IpcacheEntry>> = changes.next(&snapshot).collect();
    assert_eq!(seen.len(), 1);
}
