// SPDX-License-Identifier: Apache-2.0

//! Commits against watches and readers, with real threads.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use super::{ID, TAG, item, items, put};
use crate::{Change, Db};

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().build().unwrap()
}

/// A reader that waits on watches must see every counter value's successor: a lost wake-up would hang it.
#[test]
fn no_wakeup_is_lost() {
    const ROUNDS: usize = 3000;
    let db = Db::new();
    let table = items(&db, "items");
    let (there, back) = (table.clone(), table.clone());
    put(&db, &table, &[item(1, "0", &[]), item(2, "x0", &[])]);

    let echo = {
        let db = db.clone();
        thread::spawn(move || {
            let runtime = runtime();
            for round in 1..=ROUNDS {
                loop {
                    let snapshot = db.read();
                    let (ping, watch) = back.get_watch(&snapshot, ID.key(&1));
                    if ping.unwrap().name == round.to_string() {
                        break;
                    }
                    runtime.block_on(watch.closed());
                }
                put(&db, &back, &[item(2, &format!("x{round}"), &[])]);
            }
        })
    };
    let runtime = runtime();
    for round in 1..=ROUNDS {
        put(&db, &there, &[item(1, &round.to_string(), &[])]);
        loop {
            let snapshot = db.read();
            let (pong, watch) = there.get_watch(&snapshot, ID.key(&2));
            if pong.unwrap().name == format!("x{round}") {
                break;
            }
            runtime.block_on(watch.closed());
        }
    }
    echo.join().unwrap();
}

/// Writers of two tables keep an invariant that every snapshot must show.
#[test]
fn snapshots_are_consistent_over_tables() {
    let db = Db::new();
    let (a, b) = (items(&db, "a"), items(&db, "b"));
    let stop = Arc::new(AtomicBool::new(false));

    let writers: Vec<_> = (0..2)
        .map(|writer| {
            let (db, a, b) = (db.clone(), a.clone(), b.clone());
            thread::spawn(move || {
                for round in 0..1500 {
                    let mut txn = if writer == 0 {
                        db.write(&[&a, &b])
                    } else {
                        db.write(&[&b, &a])
                    };
                    let id = writer * 10_000 + round;
                    a.insert(&mut txn, item(id, &format!("a{id}"), &["t"])).unwrap();
                    b.insert(&mut txn, item(id, &format!("b{id}"), &["t"])).unwrap();
                    if round % 3 == 0 {
                        a.delete_by(&mut txn, ID.key(&(id - 1))).unwrap();
                        b.delete_by(&mut txn, ID.key(&(id - 1))).unwrap();
                    }
                    if round % 5 == 0 {
                        txn.abort();
                    } else {
                        txn.commit();
                    }
                }
            })
        })
        .collect();
    let reader = {
        let (db, a, b, stop) = (db.clone(), a.clone(), b.clone(), Arc::clone(&stop));
        thread::spawn(move || {
            let mut changes = a.follow(&db);
            let mut mirror = std::collections::BTreeSet::new();
            loop {
                let last = stop.load(Ordering::Acquire);
                let snapshot = db.read();
                assert_eq!(a.len(&snapshot), b.len(&snapshot));
                assert_eq!(a.list(&snapshot, TAG.key("t")).count(), a.len(&snapshot));
                for change in changes.next(&snapshot) {
                    match change {
                        Change::Upsert(object) => mirror.insert(object.id),
                        Change::Delete { object, .. } => mirror.remove(&object.id),
                        Change::Relist => panic!("the reader is not slow"),
                    };
                }
                assert_eq!(
                    mirror.iter().copied().collect::<Vec<_>>(),
                    super::ids(a.all(&snapshot))
                );
                if last {
                    return;
                }
            }
        })
    };
    for writer in writers {
        writer.join().unwrap();
    }
    stop.store(true, Ordering::Release);
    reader.join().unwrap();
}
