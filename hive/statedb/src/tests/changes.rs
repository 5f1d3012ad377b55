// SPDX-License-Identifier: Apache-2.0

use std::time::Duration;

use futures::{FutureExt, StreamExt};

use super::{ID, Item, item, items, put};
use crate::{Change, ChangeIterator, Db, RwTable, Snapshot};

fn all(changes: &mut ChangeIterator<Item>, snapshot: &Snapshot) -> Vec<String> {
    let text = |change: Change<Item>| match change {
        Change::Upsert(object) => format!("+{}{}", object.id, object.name),
        Change::Delete { object, .. } => format!("-{}{}", object.id, object.name),
        Change::Relist => "relist".to_owned(),
    };
    changes.next(snapshot).map(text).collect()
}

fn delete(db: &Db, table: &RwTable<Item>, id: i32) {
    let mut txn = db.write(&[table]);
    table.delete_by(&mut txn, ID.key(&id)).unwrap();
    txn.commit();
}

fn zombies(db: &Db) -> usize {
    db.table("items").unwrap().zombies(&db.read())
}

#[test]
fn first_all_objects_then_last_states_and_deletions() {
    let db = Db::new();
    let table = items(&db, "items");
    put(&db, &table, &[item(1, "a", &[]), item(2, "b", &[])]);
    let mut changes = table.follow(&db);
    assert_eq!(all(&mut changes, &db.read()), ["+1a", "+2b"]);
    assert!(all(&mut changes, &db.read()).is_empty());

    put(
        &db,
        &table,
        &[item(1, "c", &[]), item(1, "d", &[]), item(3, "e", &[])],
    );
    delete(&db, &table, 2);
    delete(&db, &table, 3);
    put(&db, &table, &[item(4, "f", &[])]);

    assert_eq!(all(&mut changes, &db.read()), ["+1d", "-2b", "-3e", "+4f"]);
}

#[test]
fn object_created_again_is_no_deletion() {
    let db = Db::new();
    let table = items(&db, "items");
    put(&db, &table, &[item(1, "a", &[])]);
    let mut changes = table.follow(&db);
    all(&mut changes, &db.read());

    delete(&db, &table, 1);
    put(&db, &table, &[item(1, "b", &[])]);

    assert_eq!(all(&mut changes, &db.read()), ["+1b"]);
    assert_eq!(zombies(&db), 0);
}

#[test]
fn what_is_not_taken_comes_again() {
    let db = Db::new();
    let table = items(&db, "items");
    put(&db, &table, &[item(1, "a", &[]), item(2, "b", &[])]);
    let mut changes = table.follow(&db);
    assert_eq!(changes.next(&db.read()).count(), 2);
    delete(&db, &table, 1);
    put(&db, &table, &[item(3, "c", &[])]);

    assert_eq!(changes.next(&db.read()).take(1).count(), 1);
    assert!(changes.pending(&db.read()));
    assert_eq!(zombies(&db), 1, "still there, the reader has not caught up");

    assert_eq!(all(&mut changes, &db.read()), ["+3c"]);
    assert!(!changes.pending(&db.read()));
    assert_eq!(zombies(&db), 0);
}

#[test]
fn deletions_are_kept_until_every_reader_has_seen_them() {
    let db = Db::new();
    let table = items(&db, "items");
    delete(&db, &table, 1);
    put(&db, &table, &[item(1, "a", &[])]);
    delete(&db, &table, 1);
    assert_eq!(zombies(&db), 0, "no iterator is left");

    put(&db, &table, &[item(1, "a", &[])]);
    let (mut fast, mut slow) = (table.follow(&db), table.follow(&db));
    all(&mut fast, &db.read());
    all(&mut slow, &db.read());
    delete(&db, &table, 1);
    assert_eq!(all(&mut fast, &db.read()), ["-1a"]);
    assert_eq!(zombies(&db), 1);
    assert_eq!(all(&mut slow, &db.read()), ["-1a"]);
    assert_eq!(zombies(&db), 0);

    put(&db, &table, &[item(1, "a", &[])]);
    delete(&db, &table, 1);
    drop(fast);
    drop(slow);
    assert_eq!(zombies(&db), 1);
    db.collect_garbage();
    assert_eq!(zombies(&db), 0, "readers that are gone do not count");
}

#[test]
fn stuck_reader_is_made_to_list_again() {
    let db = Db::new();
    let table = RwTable::<Item>::builder("items")
        .primary(ID)
        .graveyard_limit(4)
        .build_plain(&db)
        .unwrap();
    put(
        &db,
        &table,
        &(0..10).map(|id| item(id, "x", &[])).collect::<Vec<_>>(),
    );
    let (mut fast, mut stuck) = (table.follow(&db), table.follow(&db));
    all(&mut fast, &db.read());
    all(&mut stuck, &db.read());

    for id in 0..8 {
        delete(&db, &table, id);
        assert_eq!(
            all(&mut fast, &db.read()),
            [format!("-{id}x")],
            "the fast reader is not disturbed"
        );
        assert!(zombies(&db) <= 5);
    }

    assert_eq!(all(&mut stuck, &db.read()), ["relist", "+8x", "+9x"]);
    delete(&db, &table, 8);
    assert_eq!(
        all(&mut stuck, &db.read()),
        ["-8x"],
        "from then on it follows again"
    );
}

#[test]
fn iterator_made_in_a_transaction_misses_nothing() {
    let db = Db::new();
    let table = items(&db, "items");
    put(&db, &table, &[item(1, "a", &[])]);
    let old = db.read();
    delete(&db, &table, 1);

    let mut txn = db.write(&[&table]);
    table.insert(&mut txn, item(2, "b", &[])).unwrap();
    let mut changes = table.changes(&mut txn).unwrap();
    txn.commit();

    // A snapshot from before shows an object whose deletion is forgotten.
    assert_eq!(all(&mut changes, &old), ["+1a"]);
    assert_eq!(all(&mut changes, &db.read()), ["relist", "+2b"]);
}

#[tokio::test]
async fn changes_as_a_stream() {
    let db = Db::new();
    let table = items(&db, "items");
    put(&db, &table, &[item(1, "a", &[]), item(2, "b", &[])]);
    let mut stream = std::pin::pin!(table.follow(&db).stream(db.clone(), 100, Duration::ZERO));

    assert_eq!(stream.next().await.unwrap().len(), 2);
    assert!(stream.next().now_or_never().is_none());
    delete(&db, &table, 1);
    let batch = stream.next().await.unwrap();
    assert!(batch[0].is_delete());
    assert_eq!(batch.len(), 1);
}

#[test]
fn who_looked_at_an_empty_table_hears_of_what_came_and_went() {
    let db = Db::new();
    let table = items(&db, "items");
    let mut changes = table.follow(&db);
    assert!(all(&mut changes, &db.read()).is_empty());

    put(&db, &table, &[item(1, "a", &[])]);
    delete(&db, &table, 1);

    assert_eq!(all(&mut changes, &db.read()), ["-1a"]);
}
