// SPDX-License-Identifier: Apache-2.0

//! Stages on maps in memory, some of which fail.

use parking_lot::Mutex;
use skep_bpf_sys::{
    MapFlags, MapKind, MapSpec, MemoryMap, NestedMap, NestedSpec, RawMap,
    map::{Fate, Faults, FaultyMap, Map, Operation},
};

use super::*;
use crate::{IpEither, IpPair};

type Numbers = Map<u32, u64>;
type Pair = IpPair<Map<u32, u64>, Map<u64, u64>>;

fn raw<K, V>(name: &'static str, max: u32) -> Arc<dyn RawMap> {
    let spec = MapSpec::<K, V>::new(name, MapKind::Hash, max, MapFlags::NONE);
    Arc::new(MemoryMap::create(spec.raw()).unwrap())
}

fn numbers(max: u32) -> Numbers {
    Map::from_raw(raw::<u32, u64>("numbers", max)).unwrap()
}

fn pair(max: u32) -> Pair {
    IpPair::new(
        numbers(max),
        Map::from_raw(raw::<u64, u64>("numbers6", max)).unwrap(),
    )
}

fn owners<E>(txn: &mut Transaction<E>, count: u32) {
    assert!((0..count).all(|owner| txn.add_owner() == owner));
}

fn content(map: &Numbers) -> Vec<(u32, u64)> {
    let mut entries = map.entries().unwrap();
    entries.sort_unstable();
    entries
}

fn texts(txn: &mut Transaction) -> Vec<Option<String>> {
    txn.finish().map(|error| Some(error?.to_string())).collect()
}

#[test]
fn entries_are_written_stage_by_stage_in_the_order_they_were_added() {
    type Log = Mutex<Vec<(&'static str, Operation, u32)>>;
    let log: Arc<Log> = Arc::default();
    let logged = |name: &'static str| -> Numbers {
        let log = log.clone();
        let note = move |operation, key: &[u8]| {
            let key = u32::from_ne_bytes(key.try_into().unwrap());
            log.lock().push((name, operation, key));
            Fate::Passes
        };
        Map::from_raw(Arc::new(FaultyMap::decided_by(raw::<u32, u64>(name, 8), note))).unwrap()
    };
    let (first, second) = (logged("first"), logged("second"));
    let mut txn = Transaction::<WriteError>::default();
    owners(&mut txn, 2);
    let (mut up, mut down) = (Updates::<Numbers>::default(), Deletions::<Numbers>::default());

    // What is pushed first is not what is run first.
    down.push(1, 7);
    up.push(1, (5, 50));
    up.push(0, (3, 30));
    up.push(1, (5, 51));
    txn.run(&mut up, &second);
    txn.run(&mut down, &first);

    let (update, delete) = (Operation::Update, Operation::Delete);
    assert_eq!(
        *log.lock(),
        [
            ("second", update, 5),
            ("second", update, 3),
            ("second", update, 5),
            ("first", delete, 7)
        ]
    );
    assert_eq!(content(&second), [(3, 30), (5, 51)]);
    assert_eq!(texts(&mut txn), [None, None]);
    assert_eq!(txn.owners(), 0);
}

#[test]
fn an_owner_that_failed_takes_no_part_in_the_stages_that_follow() {
    let (small, other) = (numbers(2), numbers(8));
    let mut txn = Transaction::default();
    owners(&mut txn, 4);
    let (mut first, mut second, mut third) = (
        Updates::<Numbers>::default(),
        Updates::<Numbers>::default(),
        Deletions::<Numbers>::default(),
    );
    other.update(&9, &9).unwrap();
    other.update(&8, &8).unwrap();
    for owner in 0..4 {
        first.push(owner, (owner, 1));
        second.push(owner, (10 + owner, 2));
    }
    third.push(3, 9);
    third.push(0, 8);
    txn.fail(1, WriteError::new(closed(), 0));

    txn.run(&mut first, &small);
    txn.run(&mut second, &other);
    txn.run(&mut third, &other);

    assert_eq!(content(&small), [(0, 1), (2, 1)]);
    assert_eq!(content(&other), [(9, 9), (10, 2), (12, 2)]);
    // Stages hold what was tried.
    assert_eq!(
        first.keys().map(|(owner, _)| owner).collect::<Vec<_>>(),
        [0, 2, 3]
    );
    assert_eq!(first.failed().collect::<Vec<_>>(), [(3, 3)]);
    assert_eq!(second.keys().collect::<Vec<_>>(), [(0, 10), (2, 12)]);
    assert_eq!(
        txn.incomplete().map(|(owner, _)| owner).collect::<Vec<_>>(),
        [1, 3]
    );
    assert_eq!(
        texts(&mut txn),
        [
            None,
            Some("map closed: cannot create it with 0 entries, flags 0x0".to_owned()),
            None,
            Some("map numbers is full (2 entries)".to_owned())
        ]
    );
}

fn closed() -> MapError {
    let spec = MapSpec::<u32, u64>::new("closed", MapKind::Hash, 0, MapFlags::NONE);
    MemoryMap::create(spec.raw()).unwrap_err()
}

#[test]
fn entries_that_others_rely_on_are_written_whoever_failed() {
    let map = numbers(8);
    let mut txn = Transaction::default();
    owners(&mut txn, 2);
    let mut shared = Updates::<Numbers>::default();
    shared.push(0, (1, 1));
    txn.fail(0, WriteError::new(closed(), 0));

    txn.run_shared(&mut shared, &map);

    assert_eq!(content(&map), [(1, 1)]);
    txn.run(&mut shared, &map);
    assert!(shared.is_empty());
}

#[test]
fn the_phase_says_what_the_maps_hold_of_an_owner_that_failed() {
    let map = numbers(1);
    map.update(&0, &0).unwrap();
    let mut txn = Transaction::<WriteError>::default();
    owners(&mut txn, 4);
    for (owner, phase) in (0..).zip([Phase::Add, Phase::Change, Phase::CleanUp]) {
        let mut stage = Updates::<Numbers>::default();
        txn.enter(phase);
        // The first failure of an owner counts.
        (0..=owner).for_each(|owner| stage.push(owner, (7, 7)));
        txn.run(&mut stage, &map);
    }

    let phases = [0, 1, 2, 3].map(|owner| txn.failed_in(owner));
    assert_eq!(
        phases,
        [Some(Phase::Add), Some(Phase::Change), Some(Phase::CleanUp), None]
    );
    assert_eq!(
        [0, 1, 2, 3].map(|owner| txn.is_incomplete(owner)),
        [true, true, false, false]
    );
    assert!(txn.has_failures() && txn.error(2).is_some_and(WriteError::is_full));
    assert_eq!(txn.finish().count(), 4);
    assert!(!txn.has_failures());

    // As new: failures are early again.
    owners(&mut txn, 1);
    txn.fail(0, WriteError::new(closed(), 0));
    assert_eq!(txn.failed_in(0), Some(Phase::Add));
}

#[test]
fn a_pair_is_one_stage_and_each_entry_goes_to_its_map() {
    let maps = pair(2);
    let mut txn = Transaction::<WriteError>::default();
    owners(&mut txn, 3);
    let mut up = Updates::<Pair>::default();
    up.push(0, IpEither::V6((u64::MAX, 1)));
    up.push(0, IpEither::V4((4, 1)));
    up.push(1, IpEither::V6((6, 2)));
    for key in 0..3 {
        up.push(2, IpEither::V4((key, 3)));
    }

    txn.run(&mut up, &maps);

    assert_eq!(up.len(), 6);
    let mut v6 = maps.v6.entries().unwrap();
    v6.sort_unstable();
    assert_eq!(
        (content(&maps.v4), v6),
        (vec![(0, 3), (4, 1)], vec![(6, 2), (u64::MAX, 1)])
    );
    assert_eq!(
        up.failed().collect::<Vec<_>>(),
        [(2, IpEither::V4(1)), (2, IpEither::V4(2))]
    );
    // What failed is left for another try, also in the stage of a pair.
    up.retain_failed();
    assert_eq!(
        up.keys().collect::<Vec<_>>(),
        [(2, IpEither::V4(1)), (2, IpEither::V4(2))]
    );

    let mut down = Deletions::<Pair>::default();
    down.push(0, IpEither::V6(6));
    down.push(0, IpEither::V4(4));
    down.push(0, IpEither::V4(400));
    txn.run(&mut down, &maps);
    assert_eq!(
        (content(&maps.v4), maps.v6.keys().unwrap()),
        (vec![(0, 3)], vec![u64::MAX])
    );
    assert_eq!(
        texts(&mut txn),
        [None, None, Some("map numbers is full (2 entries)".to_owned())]
    );
}

#[test]
fn tables_are_staged_as_entries_are() {
    let spec = NestedSpec::<u32, u32>::new("tables", "table", 2, MapFlags::NONE, 3);
    let map = NestedMap::from_raw(Arc::new(MemoryMap::create(spec.raw()).unwrap())).unwrap();
    let mut txn = Transaction::<WriteError>::default();
    owners(&mut txn, 4);
    let mut up = Updates::<NestedMap<u32, u32>>::default();
    let table: Arc<[u32]> = Arc::from([1, 2, 3]);
    up.push(0, (1, table.clone()));
    up.push(1, (2, Arc::from([1, 2])));
    up.push(2, (3, table.clone()));
    up.push(3, (4, table));

    txn.run(&mut up, &map);

    assert_eq!(map.lookup(&1).unwrap(), Some(vec![1, 2, 3]));
    let mut keys = map.keys().unwrap();
    keys.sort_unstable();
    assert_eq!(keys, [1, 3]);
    let mut down = Deletions::<NestedMap<u32, u32>>::default();
    down.push(0, 1);
    down.push(3, 3);
    txn.run(&mut down, &map);
    assert_eq!(map.keys().unwrap(), [3]);
    assert_eq!(
        texts(&mut txn),
        [
            None,
            Some("map tables: inner map of 2 holds 3 elements, not 2".to_owned()),
            None,
            Some("map tables is full (2 entries)".to_owned())
        ]
    );
}

/// Every owner has an entry in three maps, each of which leads to that of the map before, and is written in that order.
/// Batches are cut, and entries fail in the middle of them.
#[test]
fn nothing_leads_to_what_was_not_written_however_batches_are_cut() {
    const OWNERS: u32 = 100;
    let mut failed = [0; 3];
    for seed in 0..200 {
        let faults = Faults::new("numbers", 0.03, seed);
        let faulty = || -> Numbers {
            let map = FaultyMap::with(raw::<u32, u64>("numbers", 90), faults.clone());
            Map::from_raw(Arc::new(map.readable())).unwrap()
        };
        let maps = [faulty(), faulty(), faulty()];
        let mut txn = Transaction::<WriteError>::default();
        owners(&mut txn, OWNERS);
        let mut stages: [Updates<Numbers>; 3] = Default::default();
        for owner in 0..OWNERS {
            stages
                .iter_mut()
                .for_each(|stage| stage.push(owner, (owner, seed)));
        }

        for ((stage, map), count) in stages.iter_mut().zip(&maps).zip(&mut failed) {
            txn.run(stage, map);
            *count += stage.failed().count();
        }

        let written = maps.each_ref().map(|map| content(map).len());
        assert!(
            written.is_sorted_by(|before, after| before >= after),
            "seed {seed}: {written:?}"
        );
        let errors: Vec<Option<WriteError>> = txn.finish().collect();
        for (owner, error) in (0..).zip(errors) {
            let has = maps.each_ref().map(|map| map.lookup(&owner).unwrap().is_some());
            match error {
                None => assert_eq!(has, [true; 3], "seed {seed}, owner {owner}"),
                Some(_) => assert!(has.is_sorted_by(|before, after| before >= after) && !has[2]),
            }
        }

        // What failed is tried again until all that fits is there.
        faults.stop();
        stages.iter_mut().for_each(Stage::clear);
        owners(&mut txn, OWNERS);
        for owner in 0..OWNERS {
            stages
                .iter_mut()
                .for_each(|stage| stage.push(owner, (owner, seed)));
        }
        stages
            .iter_mut()
            .zip(&maps)
            .for_each(|(stage, map)| txn.run(stage, map));
        assert_eq!(txn.incomplete().count(), 10, "seed {seed}");
        assert!(maps.iter().all(|map| content(map).len() == 90));
    }
    assert!(failed.iter().all(|count| *count > 0), "{failed:?}");
}

#[test]
fn memory_of_a_large_round_is_not_kept() {
    let map = numbers(100_000);
    let mut txn = Transaction::<WriteError>::default();
    let mut stage = Updates::<Numbers>::default();
    for round in [50_000, 100, 3] {
        for owner in 0..round {
            txn.add_owner();
            stage.push(owner, (owner, 1));
        }
        txn.run(&mut stage, &map);
        stage.clear();
        assert!(txn.finish().all(|error| error.is_none()));
        assert!(stage.is_empty());
    }

    assert!(
        stage.capacity() >= 100 && stage.capacity() <= 4096,
        "{}",
        stage.capacity()
    );
    txn.add_owner();
    assert!(txn.owners.capacity() <= 4096, "{}", txn.owners.capacity());
}

crate::stages! {
    struct Both {
        up: Updates<Pair>,
        down: Deletions<Numbers>,
    }
}

#[test]
fn declared_stages_are_cleared_together() {
    let mut both = Both::default();
    both.up.push(0, IpEither::V6((1, 1)));
    both.down.push(0, 7);

    both.clear();

    assert!(both.up.is_empty() && both.down.is_empty());
}
