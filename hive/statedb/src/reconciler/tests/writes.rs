// SPDX-License-Identifier: Apache-2.0

//! What the reconciler writes into the table, seen by indexes, watches and other writers.

use super::*;

const APPLIED: Index<Thing, u64> = Index::new("applied", |thing, keys| keys.add(&thing.applied));
const VALUE: Index<Thing, u64> = Index::new("value", |thing, keys| keys.add(&thing.value));

fn ids(world: &World, query: crate::Query<Thing>) -> Vec<u64> {
    let snapshot = world.db.read();
    world.table.list(&snapshot, query).map(|thing| thing.id).collect()
}

#[tokio::test(start_paused = true)]
async fn indexes_follow_what_an_update_changes() {
    let mut world = World::with(config(), |table| table.index(APPLIED).index(VALUE));
    world.start();

    let revision = world.put(&[thing(1, 10), thing(2, 20), thing(3, 10)]);
    world.handle.wait_until_reconciled(revision).await;

    assert!(ids(&world, APPLIED.key(&0)).is_empty());
    assert_eq!(ids(&world, APPLIED.key(&10)), [1, 3]);
    assert_eq!(ids(&world, VALUE.key(&20)), [2]);
}

#[tokio::test(start_paused = true)]
async fn statuses_close_the_watches_of_their_objects() {
    let mut world = World::with(config(), |table| table.index(VALUE));
    let revision = world.put(&[
        thing(1, 10),
        Thing {
            status: Status::done(),
            ..thing(2, 20)
        },
    ]);
    let snapshot = world.db.read();
    let watches = [1, 2].map(|id| world.table.get_watch(&snapshot, ID.key(&id)).1);
    let lists = [10, 20].map(|value| world.table.list_watch(&snapshot, VALUE.key(&value)).1);

    world.start();
    world.handle.wait_until_reconciled(revision).await;

    world.assert_kind(1, StatusKind::Done);
    assert_eq!(watches.map(|watch| watch.is_closed()), [true, false]);
    assert_eq!(lists.map(|watch| watch.is_closed()), [true, false]);
}

/// Objects keep their order of change: a status is a change like others, seen once and as the last state.
#[tokio::test(start_paused = true)]
async fn statuses_of_many_objects_are_changes_in_order() {
    let world = World::started(config());
    let mut changes = world.table.follow(&world.db);
    let things: Vec<Thing> = (0..100).map(|id| thing(id * 7 % 100, id)).collect();

    let revision = world.put(&things);
    world.handle.wait_until_reconciled(revision).await;

    let snapshot = world.db.read();
    let seen: Vec<(u64, StatusKind)> = changes
        .next(&snapshot)
        .filter_map(|change| change.object().map(|thing| (thing.id, thing.status.kind)))
        .collect();
    let wanted: Vec<(u64, StatusKind)> = things.iter().map(|thing| (thing.id, StatusKind::Done)).collect();
    assert_eq!(seen, wanted);
    assert_eq!(world.table.revision(&snapshot), 200);
}

#[tokio::test(start_paused = true)]
async fn no_status_reaches_what_took_the_place_of_an_object() {
    let world = World::started(config());
    let (db, table) = (world.db.clone(), world.table.clone());
    let newcomer = Thing {
        status: Status::done(),
        ..thing(9, 90)
    };
    let id = newcomer.status.id;
    world.target.0.lock().meanwhile = Some(Box::new(move || {
        let mut txn = db.write(&[&table]);
        table.delete(&mut txn, &thing(1, 0)).unwrap();
        table.insert(&mut txn, newcomer).unwrap();
        txn.commit();
    }));

    let revision = world.put(&[thing(1, 10)]);
    world.handle.wait_until_reconciled(revision).await;

    let snapshot = world.db.read();
    assert!(world.table.get(&snapshot, ID.key(&1)).is_none());
    let found = world.table.get(&snapshot, ID.key(&9)).unwrap();
    assert_eq!((found.value, found.applied, found.status.id), (90, 0, id));
}
