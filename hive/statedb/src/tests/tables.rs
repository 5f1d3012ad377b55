// SPDX-License-Identifier: Apache-2.0

use std::{sync::Arc, time::Duration};

use super::{ID, Item, NAME, TAG, ids, item, items, put};
use crate::{Db, Error, Index, RwTable, WatchSet};

#[test]
fn snapshot_does_not_see_later_commits() {
    let db = Db::new();
    let table = items(&db, "items");
    put(&db, &table, &[item(1, "a", &[])]);

    let before = db.read();
    let mut txn = db.write(&[&table]);
    table.insert(&mut txn, item(2, "b", &[])).unwrap();
    assert_eq!(table.len(&txn), 2, "a transaction reads its own writes");
    assert_eq!(table.len(&db.read()), 1, "others do not");
    let after = txn.commit();

    assert_eq!(table.len(&before), 1);
    assert_eq!(ids(table.all(&after)), [1, 2]);
}

#[test]
fn dropped_transaction_undoes_objects_and_revision() {
    let db = Db::new();
    let table = items(&db, "items");
    put(&db, &table, &[item(1, "a", &["x"])]);

    let mut txn = db.write(&[&table]);
    table.delete(&mut txn, &item(1, "", &[])).unwrap();
    table.insert(&mut txn, item(2, "b", &[])).unwrap();
    drop(txn);

    let snapshot = db.read();
    assert_eq!(table.revision(&snapshot), 1);
    assert_eq!(ids(table.all(&snapshot)), [1]);
    assert_eq!(ids(table.list(&snapshot, TAG.key("x"))), [1]);
    db.write(&[&table]).commit();
}

#[test]
fn what_no_snapshot_shows_is_freed_at_once() {
    const ID: Index<(u32, Arc<()>), u32> = Index::new("id", |row, keys| keys.add(&row.0));
    let db = Db::new();
    let table = RwTable::builder("probes").primary(ID).build_plain(&db).unwrap();
    let others: Vec<_> = (0..20)
        .map(|number| items(&db, &format!("other{number}")))
        .collect();
    let probe = Arc::new(());
    let insert = || {
        let mut txn = db.write(&[&table]);
        table.insert(&mut txn, (1, Arc::clone(&probe))).unwrap();
        txn.commit()
    };
    let delete = || {
        let mut txn = db.write(&[&table]);
        table.delete_all(&mut txn).unwrap();
        txn.commit()
    };

    insert();
    put(&db, &others[3], &[item(1, "a", &[])]);
    delete();
    assert_eq!(Arc::strong_count(&probe), 1);

    let kept = insert();
    delete();
    put(&db, &others[19], &[item(1, "a", &[])]);
    assert_eq!(table.len(&kept), 1, "the snapshot stays as it was");
    assert_eq!(Arc::strong_count(&probe), 2);
    drop(kept);
    assert_eq!(Arc::strong_count(&probe), 1);
    assert_eq!((table.len(&db.read()), others[3].len(&db.read())), (0, 1));
}

#[test]
fn several_tables_change_together() {
    let db = Db::new();
    let (a, b) = (items(&db, "a"), items(&db, "b"));

    let mut txn = db.write(&[&b, &a, &b]);
    a.insert(&mut txn, item(1, "a", &[])).unwrap();
    b.insert(&mut txn, item(2, "b", &[])).unwrap();
    let before = db.read();
    let after = txn.commit();

    assert_eq!((a.len(&before), b.len(&before)), (0, 0));
    assert_eq!((a.len(&after), b.len(&after)), (1, 1));
}

#[test]
fn table_must_be_locked_to_be_written() {
    let db = Db::new();
    let (a, b) = (items(&db, "a"), items(&db, "b"));

    let mut txn = db.write(&[&a]);

    assert_eq!(
        b.insert(&mut txn, item(1, "", &[])),
        Err(Error::NotLocked { table: "b".into() })
    );
    assert_eq!(
        b.delete_all(&mut txn),
        Err(Error::NotLocked { table: "b".into() })
    );
}

#[test]
fn tables_of_another_database_are_not_confused() {
    let (one, two) = (Db::new(), Db::new());
    let (a, b) = (items(&one, "a"), items(&two, "b"));
    put(&one, &a, &[item(1, "a", &[])]);

    assert_eq!(b.len(&one.read()), 0);
    assert!(b.insert(&mut one.write(&[&a, &b]), item(1, "", &[])).is_err());
}

#[test]
#[should_panic(expected = "already locked by a write transaction of this thread")]
fn locking_a_table_twice_in_one_thread_is_refused() {
    let db = Db::new();
    let table = items(&db, "items");
    let _first = db.write(&[&table]);
    let _second = db.write(&[&table]);
}

#[test]
#[cfg(debug_assertions)]
#[should_panic(expected = "nested write transaction")]
fn nested_transactions_are_found_in_debug_builds() {
    let db = Db::new();
    let (a, b) = (items(&db, "a"), items(&db, "b"));
    let _first = db.write(&[&a]);
    let _second = db.write(&[&b]);
}

#[test]
fn unique_secondary_index_is_enforced() {
    let db = Db::new();
    let table = items(&db, "items");
    put(&db, &table, &[item(1, "web", &[])]);

    let mut txn = db.write(&[&table]);
    let refused = table.insert(&mut txn, item(2, "web", &[]));
    table.insert(&mut txn, item(1, "web", &["x"])).unwrap();
    table.insert(&mut txn, item(3, "api", &[])).unwrap();
    let moved = table.insert(&mut txn, item(3, "web", &[]));
    let snapshot = txn.commit();

    let conflict = |err: Error| match err {
        Error::Conflict { index, .. } => index,
        other => panic!("{other}"),
    };
    assert_eq!(refused.map_err(conflict), Err("name"));
    assert_eq!(moved.map_err(conflict), Err("name"));
    assert_eq!(ids(table.all(&snapshot)), [1, 3]);
    assert_eq!(table.get(&snapshot, NAME.key("api")).unwrap().id, 3);
}

#[test]
fn signed_keys_sort_by_value() {
    let db = Db::new();
    let table = items(&db, "items");
    put(
        &db,
        &table,
        &[item(1, "a", &[]), item(-1, "b", &[]), item(i32::MIN, "c", &[])],
    );

    let snapshot = db.read();
    assert_eq!(ids(table.all(&snapshot)), [i32::MIN, -1, 1]);
    assert_eq!(ids(table.lower_bound(&snapshot, ID.key(&0))), [1]);
}

#[test]
fn secondary_index_finds_by_key_and_prefix() {
    let db = Db::new();
    let table = items(&db, "items");
    put(
        &db,
        &table,
        &[
            item(1, "a", &["red", "blue"]),
            item(2, "b", &["re"]),
            item(3, "c", &["red"]),
        ],
    );

    let snapshot = db.read();
    assert_eq!(ids(table.list(&snapshot, TAG.key("red"))), [1, 3]);
    assert_eq!(ids(table.list(&snapshot, TAG.key("re"))), [2]);
    assert_eq!(ids(table.prefix(&snapshot, TAG.key("re"))), [2, 1, 3]);
    assert_eq!(ids(table.lower_bound(&snapshot, TAG.key("rea"))), [1, 3]);
    assert_eq!(table.get(&snapshot, TAG.key("red")).unwrap().id, 1);
    assert!(table.get(&snapshot, TAG.key("r")).is_none());

    put(&db, &table, &[item(1, "a", &["green"])]);
    let snapshot = db.read();
    assert_eq!(ids(table.list(&snapshot, TAG.key("red"))), [3]);
    assert_eq!(ids(table.list(&snapshot, TAG.key("green"))), [1]);
}

#[test]
fn compare_and_swap_needs_the_current_revision() {
    let db = Db::new();
    let table = items(&db, "items");
    put(&db, &table, &[item(1, "a", &[])]);
    let old = table.get(&db.read(), ID.key(&1)).unwrap().revision();
    put(&db, &table, &[item(1, "b", &[])]);
    let now = table.get(&db.read(), ID.key(&1)).unwrap().revision();

    let mut txn = db.write(&[&table]);
    assert!(matches!(
        table.compare_and_swap(&mut txn, old, item(1, "c", &[])),
        Err(Error::RevisionMismatch {
            expected: 1,
            found: 2,
            ..
        })
    ));
    assert!(matches!(
        table.compare_and_delete(&mut txn, old, &item(1, "", &[])),
        Err(Error::RevisionMismatch { .. })
    ));
    assert!(matches!(
        table.compare_and_swap(&mut txn, 1, item(9, "", &[])),
        Err(Error::NotFound { .. })
    ));
    table.compare_and_swap(&mut txn, now, item(1, "c", &[])).unwrap();
    let latest = table.get(&txn, ID.key(&1)).unwrap().revision();
    table
        .compare_and_delete(&mut txn, latest, &item(1, "", &[]))
        .unwrap();
    assert!(table.is_empty(&txn));
}

#[test]
fn modify_update_and_bulk_deletes() {
    let db = Db::new();
    let table = items(&db, "items");
    let mut txn = db.write(&[&table]);
    table.modify(&mut txn, item(1, "a", &[]), |_, new| new).unwrap();
    let merged = table.modify(&mut txn, item(1, "b", &[]), |old, new| {
        item(1, &(old.name.clone() + &new.name), &["t"])
    });
    assert_eq!(merged.unwrap().unwrap().name, "a");
    assert_eq!(table.get(&txn, ID.key(&1)).unwrap().name, "ab");

    table
        .update(&mut txn, ID.key(&1), |old| Item {
            name: "z".into(),
            ..old.clone()
        })
        .unwrap();
    assert!(matches!(
        table.update(&mut txn, ID.key(&5), Item::clone),
        Err(Error::NotFound { .. })
    ));
    table.insert(&mut txn, item(2, "c", &["t"])).unwrap();
    table.insert(&mut txn, item(3, "d", &[])).unwrap();
    table.delete_by(&mut txn, TAG.key("t")).unwrap();
    assert_eq!(ids(table.all(&txn)), [3]);
    assert_eq!(table.delete_all(&mut txn), Ok(1));
    assert!(table.is_empty(&txn));
    assert!(table.get(&txn, NAME.key("d")).is_none());
}

#[test]
fn by_revision_gives_the_order_of_changes() {
    let db = Db::new();
    let table = items(&db, "items");
    put(
        &db,
        &table,
        &[
            item(1, "a", &[]),
            item(2, "b", &[]),
            item(3, "c", &[]),
            item(1, "d", &[]),
        ],
    );

    let snapshot = db.read();
    assert_eq!(ids(table.by_revision(&snapshot, 0)), [2, 3, 1]);
    assert_eq!(ids(table.by_revision(&snapshot, 3)), [3, 1]);
    assert_eq!(table.revision(&snapshot), 4);
}

#[test]
fn watch_closes_exactly_for_the_touched_key_or_prefix() {
    let db = Db::new();
    let table = items(&db, "items");
    put(
        &db,
        &table,
        &[
            item(1, "web-1", &["red"]),
            item(2, "web-2", &["blue"]),
            item(3, "api", &[]),
        ],
    );

    let snapshot = db.read();
    let (_, one) = table.get_watch(&snapshot, ID.key(&1));
    let (_, absent) = table.get_watch(&snapshot, ID.key(&7));
    let (_, red) = table.list_watch(&snapshot, TAG.key("red"));
    let (_, blue) = table.list_watch(&snapshot, TAG.key("blue"));
    let (_, web) = table.prefix_watch(&snapshot, NAME.key("web-"));
    let (_, all) = table.all_watch(&snapshot);
    let closed = || [&one, &absent, &red, &blue, &web, &all].map(|watch| watch.is_closed());
    assert_eq!(closed(), [false; 6]);

    put(&db, &table, &[item(3, "api", &["green"])]);
    assert_eq!(
        closed(),
        [false, false, false, false, false, true],
        "only the whole table changed"
    );

    put(&db, &table, &[item(2, "web-2", &["red"])]);
    assert_eq!(closed(), [false, false, true, true, true, true]);

    put(&db, &table, &[item(7, "new", &[])]);
    assert_eq!(closed(), [false, true, true, true, true, true]);

    let mut txn = db.write(&[&table]);
    table.delete(&mut txn, &item(1, "", &[])).unwrap();
    assert!(!one.is_closed(), "nothing closes before the commit");
    txn.commit();
    assert!(one.is_closed());
}

#[test]
fn watch_on_an_old_snapshot_is_closed_only_if_the_answer_changed() {
    let db = Db::new();
    let table = items(&db, "items");
    put(&db, &table, &[item(1, "a", &["red"]), item(2, "b", &["blue"])]);
    let old = db.read();
    put(&db, &table, &[item(2, "b", &["green"])]);

    assert!(!table.get_watch(&old, ID.key(&1)).1.is_closed());
    assert!(table.get_watch(&old, ID.key(&2)).1.is_closed());
    assert!(!table.list_watch(&old, TAG.key("red")).1.is_closed());
    assert!(table.list_watch(&old, TAG.key("blue")).1.is_closed());
    assert!(table.prefix_watch(&old, TAG.key("")).1.is_closed());
    assert!(table.all_watch(&old).1.is_closed());
}

#[test]
fn watch_made_during_a_transaction_closes_at_its_commit() {
    let db = Db::new();
    let table = items(&db, "items");
    put(&db, &table, &[item(1, "a", &[]), item(2, "b", &[])]);

    let mut txn = db.write(&[&table]);
    table.insert(&mut txn, item(1, "c", &[])).unwrap();
    let (_, one) = table.get_watch(&db.read(), ID.key(&1));
    let (_, two) = table.get_watch(&db.read(), ID.key(&2));
    txn.commit();

    assert!(one.is_closed());
    assert!(!two.is_closed());
}

#[test]
fn dropped_watches_leave_nothing_behind() {
    let db = Db::new();
    let table = items(&db, "items");
    let snapshot = db.read();
    let first = table.get_watch(&snapshot, ID.key(&1)).1;
    let second = table.get_watch(&snapshot, ID.key(&1)).1;
    drop(first);
    assert!(!table.0.meta.watches.lock().is_empty());
    drop(second);
    drop(table.prefix_watch(&snapshot, TAG.key("x")).1);

    assert!(table.0.meta.watches.lock().is_empty());
    assert!(!table.0.meta.watches.wants_keys());
}

#[tokio::test(start_paused = true)]
async fn watch_set_gives_the_closed_ones_once() {
    let db = Db::new();
    let table = items(&db, "items");
    let snapshot = db.read();
    let mut set = WatchSet::new();
    let one = set.add(table.get_watch(&snapshot, ID.key(&1)).1);
    let two = set.add(table.get_watch(&snapshot, ID.key(&2)).1);
    set.add(table.get_watch(&snapshot, ID.key(&3)).1);
    put(&db, &table, &[item(1, "a", &[])]);

    assert_eq!(set.wait(Duration::ZERO).await, [one]);
    put(&db, &table, &[item(2, "b", &[])]);
    assert_eq!(set.wait(Duration::from_millis(10)).await, [two]);
    assert_eq!(set.len(), 1);
    assert!(
        tokio::time::timeout(Duration::from_secs(1), set.wait(Duration::ZERO))
            .await
            .is_err()
    );
}

#[test]
fn initializer_survives_an_aborted_transaction() {
    let db = Db::new();
    let table = items(&db, "items");
    assert!(
        table.is_initialized(&db.read()),
        "without initialisers a table is complete"
    );
    let mut txn = db.write(&[&table]);
    let guard = table.register_initializer(&mut txn, "k8s").unwrap();
    assert!(matches!(
        table.register_initializer(&mut txn, "k8s"),
        Err(Error::InitializerExists { .. })
    ));
    let other = table.register_initializer(&mut txn, "file").unwrap();
    let (done, watch) = table.initialized_watch(&txn.commit());
    assert!(!done);

    let mut txn = db.write(&[&table]);
    txn.initialized(&guard).unwrap();
    drop(txn);
    assert_eq!(table.pending_initializers(&db.read()), ["k8s", "file"]);
    assert!(!watch.is_closed());

    let mut txn = db.write(&[&table]);
    txn.initialized(&guard).unwrap();
    txn.initialized(&guard).unwrap();
    txn.initialized(&other).unwrap();
    assert!(!table.is_initialized(&db.read()));
    txn.commit();
    assert!(table.is_initialized(&db.read()));
    assert!(watch.is_closed());
}

#[test]
fn commits_warn_of_initializers_that_are_late() {
    let db = Db::new();
    let (done, stuck) = (items(&db, "done"), items(&db, "stuck"));
    let mut txn = db.write(&[&done, &stuck]);
    let guard = done.register_initializer(&mut txn, "fast").unwrap();
    stuck.register_initializer(&mut txn, "slow").unwrap();
    txn.initialized(&guard).unwrap();
    let snapshot = txn.commit();

    let at = |seconds| {
        let now = db.inner.created + Duration::from_secs(seconds);
        db.inner
            .warn_late(&snapshot.root, now)
            .into_iter()
            .flat_map(|(_, names)| names)
            .collect::<Vec<_>>()
    };
    assert!(at(29).is_empty());
    assert_eq!(at(32), ["slow"]);
    assert!(at(40).is_empty(), "not with every commit");
    assert_eq!(at(63), ["slow"]);
}

#[test]
fn a_source_that_has_not_begun_is_not_late() {
    let db = Db::new();
    let table = items(&db, "items");
    let mut txn = db.write(&[&table]);
    let guard = table.announce_initializer(&mut txn, "standby").unwrap();
    let snapshot = txn.commit();
    assert!(!table.is_initialized(&snapshot));
    let late = |seconds| {
        let now = std::time::Instant::now() + Duration::from_secs(seconds);
        !db.inner.warn_late(&snapshot.root, now).is_empty()
    };

    assert!(!late(3600));
    guard.begin();

    assert!(late(7200));
}

#[test]
fn late_registration_makes_a_table_pending_again() {
    let db = Db::new();
    let (table, other) = (items(&db, "items"), items(&db, "other"));
    let mut txn = db.write(&[&table]);
    let guard = table.register_initializer(&mut txn, "late").unwrap();
    txn.commit();
    assert!(!table.is_initialized(&db.read()));

    assert!(db.write(&[&other]).initialized(&guard).is_err());
}

#[tokio::test(start_paused = true)]
async fn waiting_for_initialization_ends_with_the_commit() {
    let db = Db::new();
    let table = items(&db, "items");
    let mut txn = db.write(&[&table]);
    let guard = table.register_initializer(&mut txn, "k8s").unwrap();
    txn.commit();

    let reader = table.reader();
    let waiting = {
        let db = db.clone();
        tokio::spawn(async move { reader.wait_initialized(&db).await })
    };
    tokio::time::sleep(Duration::from_secs(61)).await;
    assert!(!waiting.is_finished());
    let mut txn = db.write(&[&table]);
    txn.initialized(&guard).unwrap();
    table.insert(&mut txn, item(1, "a", &[])).unwrap();
    txn.commit();

    assert_eq!(table.len(&waiting.await.unwrap()), 1);
}

#[test]
fn bad_definitions_are_refused() {
    let db = Db::new();
    items(&db, "items");
    const RESERVED: Index<Item, i32> = Index::new("__x", |item, keys| keys.add(&item.id));
    const TWICE: Index<Item, i32> = Index::new("id", |item, keys| keys.add(&item.id));
    let builder = |name| RwTable::<Item>::builder(name).primary(ID);

    assert!(matches!(
        builder("items").build_plain(&db),
        Err(Error::TableExists { .. })
    ));
    for name in ["", "Items", "9a", "a b", "a23456789012345678901234567890123"] {
        assert!(
            matches!(builder(name).build_plain(&db), Err(Error::TableName { .. })),
            "{name}"
        );
    }
    assert!(matches!(
        builder("x").index(RESERVED).build_plain(&db),
        Err(Error::IndexName { .. })
    ));
    assert!(matches!(
        builder("x").index(TWICE).build_plain(&db),
        Err(Error::IndexExists { .. })
    ));
}

#[test]
fn primary_index_must_give_one_key() {
    const TAGS: Index<Item, str> =
        Index::new("tag", |item, keys| item.tags.iter().for_each(|tag| keys.add(tag)));
    let db = Db::new();
    let table = RwTable::builder("items").primary(TAGS).build_plain(&db).unwrap();
    let mut txn = db.write(&[&table]);

    assert_eq!(
        table.insert(&mut txn, item(1, "a", &["x", "y"])),
        Err(Error::PrimaryKey {
            table: "items".into(),
            keys: 2
        })
    );
    assert_eq!(
        table.insert(&mut txn, item(1, "a", &[])),
        Err(Error::PrimaryKey {
            table: "items".into(),
            keys: 0
        })
    );
    assert!(table.insert(&mut txn, item(1, "a", &["x"])).is_ok());
}

#[test]
fn handle_names_the_writer() {
    let db = Db::new();
    let table = items(&db, "items");
    put(&db.handle("agent.lb"), &table, &[item(1, "a", &[])]);

    let last = db.table("items").unwrap().last_write();
    assert_eq!(&*last.handle, "agent.lb");
    assert!(last.held.is_some());
    let open = db.write(&[&table]);
    assert!(db.table("items").unwrap().last_write().held.is_none());
    drop(open);
    assert!(db.table("items").unwrap().last_write().held.is_some());
}
