// SPDX-License-Identifier: Apache-2.0

//! Random transactions against a plain map, with watches and change streams checked at each step.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::{ID, Item, NAME, TAG, item, items};
use crate::{Change, ChangeIterator, Db, Error, RwTable, Snapshot, Watch};

#[derive(Debug, Clone)]
enum Op {
    Insert(i32, u8, Vec<u8>),
    Delete(i32),
    DeleteAll,
    Swap(i32, bool),
}

#[derive(Debug, Clone)]
struct Step {
    ops: Vec<Op>,
    abort: bool,
    read: [bool; 2],
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        8 => (-4i32..12, 0u8..10, proptest::collection::vec(0u8..4, 0..3)).prop_map(|(id, name, tags)| Op::Insert(id, name, tags)),
        4 => (-4i32..12).prop_map(Op::Delete),
        1 => Just(Op::DeleteAll),
        2 => (-4i32..12, any::<bool>()).prop_map(|(id, stale)| Op::Swap(id, stale)),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    (
        proptest::collection::vec(op(), 0..6),
        proptest::bool::weighted(0.2),
        any::<[bool; 2]>(),
    )
        .prop_map(|(ops, abort, read)| Step { ops, abort, read })
}

type Model = BTreeMap<i32, (Item, u64)>;

fn tag(number: u8) -> String {
    // One tag is a prefix of the next.
    "t".repeat(usize::from(number) + 1)
}

fn apply(table: &RwTable<Item>, txn: &mut crate::WriteTxn, model: &mut Model, revision: &mut u64, op: &Op) {
    match op {
        Op::Insert(id, name, tags) => {
            let tags: Vec<String> = tags.iter().map(|&number| tag(number)).collect();
            let tags: Vec<&str> = tags.iter().map(String::as_str).collect();
            let object = item(*id, &format!("n{name}"), &tags);
            let taken = model
                .values()
                .any(|(other, _)| other.id != *id && other.name == object.name);
            let result = table.insert(txn, object.clone());
            if taken {
                assert!(matches!(result, Err(Error::Conflict { .. })));
            } else {
                *revision += 1;
                let old = model.insert(*id, (object, *revision));
                assert_eq!(
                    result.unwrap().map(|old| Item::clone(&old)),
                    old.map(|(old, _)| old)
                );
            }
        }
        Op::Delete(id) => {
            let old = model.remove(id);
            *revision += u64::from(old.is_some());
            let deleted = table.delete(txn, &item(*id, "", &[])).unwrap();
            assert_eq!(deleted.map(|old| Item::clone(&old)), old.map(|(old, _)| old));
        }
        Op::DeleteAll => {
            *revision += model.len() as u64;
            assert_eq!(table.delete_all(txn).unwrap(), model.len());
            model.clear();
        }
        Op::Swap(id, stale) => {
            let current = model.get(id).cloned();
            let expected = current
                .as_ref()
                .map_or(1, |(_, at)| at - u64::from(*stale && *at > 0));
            let object = current
                .as_ref()
                .map_or_else(|| item(*id, "none", &[]), |(old, _)| old.clone());
            let result = table.compare_and_swap(txn, expected, object.clone());
            match current {
                None => assert!(matches!(result, Err(Error::NotFound { .. }))),
                Some(_) if *stale => assert!(matches!(result, Err(Error::RevisionMismatch { .. }))),
                Some(_) => {
                    *revision += 1;
                    result.unwrap();
                    model.insert(*id, (object, *revision));
                }
            }
        }
    }
}

fn compare(table: &RwTable<Item>, snapshot: &Snapshot, model: &Model, revision: u64) {
    let wanted: Vec<i32> = model.keys().copied().collect();
    assert_eq!(super::ids(table.all(snapshot)), wanted);
    assert_eq!(table.len(snapshot), model.len());
    assert_eq!(table.revision(snapshot), revision);
    for (object, at) in model.values() {
        let found = table.get(snapshot, ID.key(&object.id)).unwrap();
        assert_eq!((&**found, found.revision()), (object, *at));
        assert_eq!(table.get(snapshot, NAME.key(&object.name)).unwrap().id, object.id);
    }
    for number in 0..4 {
        let name = tag(number);
        let having: Vec<i32> = model
            .values()
            .filter(|(o, _)| o.tags.contains(&name))
            .map(|(o, _)| o.id)
            .collect();
        assert_eq!(super::ids(table.list(snapshot, TAG.key(&name))), having);
        let mut starting: Vec<(String, i32)> = model
            .values()
            .flat_map(|(o, _)| {
                o.tags
                    .iter()
                    .filter(|t| t.starts_with(&name))
                    .map(|t| (t.clone(), o.id))
            })
            .collect();
        starting.sort();
        let starting: Vec<i32> = starting.into_iter().map(|(_, id)| id).collect();
        assert_eq!(super::ids(table.prefix(snapshot, TAG.key(&name))), starting);
    }
    for from in [-3, 0, 5] {
        let above: Vec<i32> = model.range(from..).map(|(id, _)| *id).collect();
        assert_eq!(super::ids(table.lower_bound(snapshot, ID.key(&from))), above);
    }
    let mut by_revision: Vec<(u64, i32)> = model.values().map(|(o, at)| (*at, o.id)).collect();
    by_revision.sort_unstable();
    let by_revision: Vec<i32> = by_revision.into_iter().map(|(_, id)| id).collect();
    assert_eq!(super::ids(table.by_revision(snapshot, 0)), by_revision);
}

/// Brings a copy up to date from the change stream.
fn follow(
    mirror: &mut BTreeMap<i32, Item>,
    changes: &mut ChangeIterator<Item>,
    snapshot: &Snapshot,
    relists: bool,
) {
    let mut last = 0;
    for change in changes.next(snapshot) {
        assert!(
            change.revision() > last || matches!(change, Change::Relist),
            "in order of revision"
        );
        last = change.revision();
        match change {
            Change::Upsert(object) => {
                mirror.insert(object.id, Item::clone(&object));
            }
            Change::Delete { object, .. } => {
                mirror.remove(&object.id);
            }
            Change::Relist => {
                assert!(relists);
                mirror.clear();
            }
        }
    }
}

type Answer = Vec<(i32, u64)>;
type Watched = (Box<dyn Fn(&Model) -> Answer>, Watch);

fn watches(table: &RwTable<Item>, snapshot: &Snapshot) -> Vec<Watched> {
    let mut out: Vec<Watched> = Vec::new();
    for id in [-1, 3, 7] {
        let answer = move |model: &Model| model.get(&id).map(|(_, at)| (id, *at)).into_iter().collect();
        out.push((Box::new(answer), table.get_watch(snapshot, ID.key(&id)).1));
    }
    for number in [0u8, 2] {
        let name = tag(number);
        let watch = table.list_watch(snapshot, TAG.key(&name)).1;
        let exact = name.clone();
        let with = move |model: &Model, test: &dyn Fn(&String) -> bool| -> Answer {
            model
                .values()
                .filter(|(o, _)| o.tags.iter().any(test))
                .map(|(o, at)| (o.id, *at))
                .collect()
        };
        out.push((Box::new(move |model| with(model, &|t| *t == exact)), watch));
        let watch = table.prefix_watch(snapshot, TAG.key(&name)).1;
        out.push((
            Box::new(move |model| with(model, &|t| t.starts_with(&name))),
            watch,
        ));
    }
    let everything = |model: &Model| model.values().map(|(o, at)| (o.id, *at)).collect();
    out.push((Box::new(everything), table.all_watch(snapshot).1));
    out
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn tables_behave_like_a_map(steps in proptest::collection::vec(step(), 1..25), limit in prop_oneof![Just(2usize), Just(1000)]) {
        let db = Db::new();
        let table = RwTable::builder("items").primary(ID).index(NAME).index(TAG).graveyard_limit(limit).build_plain(&db).unwrap();
        drop(items(&db, "other"));
        let (mut model, mut revision) = (Model::new(), 0);
        let mut readers = [table.follow(&db), table.follow(&db)];
        let mut mirrors = [BTreeMap::new(), BTreeMap::new()];
        let mut history: Vec<(Snapshot, Model, u64)> = Vec::new();

        for step in steps {
            let before = db.read();
            let watched = watches(&table, &before);
            let (mut next, mut next_revision) = (model.clone(), revision);
            let mut txn = db.write(&[&table]);
            for op in &step.ops {
                apply(&table, &mut txn, &mut next, &mut next_revision, op);
            }
            if step.abort {
                txn.abort();
                next = model.clone();
                next_revision = revision;
            } else {
                txn.commit();
            }

            let snapshot = db.read();
            compare(&table, &snapshot, &next, next_revision);
            for (answer, watch) in &watched {
                if answer(&model) != answer(&next) {
                    prop_assert!(watch.is_closed(), "a change was missed");
                } else if step.ops.len() <= 1 {
                    prop_assert!(!watch.is_closed() || answer(&next).is_empty() && revision != next_revision);
                }
            }
            history.push((before, model.clone(), revision));
            (model, revision) = (next, next_revision);
            for (at, read) in step.read.iter().enumerate() {
                if *read {
                    follow(&mut mirrors[at], &mut readers[at], &snapshot, limit == 2);
                    prop_assert_eq!(mirrors[at].values().collect::<Vec<_>>(), model.values().map(|(o, _)| o).collect::<Vec<_>>());
                }
            }
        }
        for (snapshot, model, revision) in &history {
            compare(&table, snapshot, model, *revision);
        }
    }
}
