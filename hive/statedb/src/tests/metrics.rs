// SPDX-License-Identifier: Apache-2.0

//! Metrics of a database.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use parking_lot::Mutex;

use super::{ID, item, items, put};
use crate::{Db, Metrics, Revision};

#[derive(Default)]
struct Recorder {
    last: Mutex<BTreeMap<&'static str, u64>>,
    waits: Mutex<Vec<(String, String)>>,
    written: Mutex<Vec<(String, Vec<String>)>>,
}

impl Recorder {
    fn set(&self, name: &'static str, value: u64) {
        self.last.lock().insert(name, value);
    }

    fn get(&self, name: &str) -> u64 {
        self.last.lock()[name]
    }
}

impl Metrics for Recorder {
    fn write_txn_duration(&self, handle: &str, tables: &[&str], _: Duration) {
        let tables = tables.iter().map(|&table| table.to_owned()).collect();
        self.written.lock().push((handle.to_owned(), tables));
    }
    fn table_contention(&self, handle: &str, table: &str, _: Duration) {
        self.waits.lock().push((handle.to_owned(), table.to_owned()));
    }
    fn objects(&self, _: &str, count: usize) {
        self.set("objects", count as u64);
    }
    fn revision(&self, _: &str, revision: Revision) {
        self.set("revision", revision);
    }
    fn delete_trackers(&self, _: &str, count: usize) {
        self.set("trackers", count as u64);
    }
    fn graveyard_objects(&self, _: &str, count: usize) {
        self.set("graveyard", count as u64);
    }
    fn graveyard_low_watermark(&self, _: &str, revision: Revision) {
        self.set("watermark", revision);
    }
    fn graveyard_cleaning_duration(&self, _: &str, _: Duration) {
        self.set("cleaned", 1);
    }
}

#[test]
fn metrics_follow_the_table() {
    let recorder = Arc::new(Recorder::default());
    let db = Db::with_metrics(Arc::clone(&recorder) as Arc<dyn Metrics>);
    let table = items(&db, "items");
    let mut changes = table.follow(&db);
    put(
        &db.handle("writer"),
        &table,
        &[item(1, "a", &[]), item(2, "b", &[])],
    );
    changes.next(&db.read()).for_each(drop);
    let mut txn = db.write(&[&table]);
    table.delete_by(&mut txn, ID.key(&1)).unwrap();
    txn.commit();

    assert_eq!((recorder.get("objects"), recorder.get("revision")), (1, 3));
    assert_eq!((recorder.get("trackers"), recorder.get("graveyard")), (1, 1));
    assert!(
        recorder
            .written
            .lock()
            .contains(&("writer".into(), vec!["items".into()]))
    );

    changes.next(&db.read()).for_each(drop);
    assert_eq!((recorder.get("graveyard"), recorder.get("cleaned")), (0, 1));
    assert_eq!(recorder.get("watermark"), 3);
}

#[test]
fn waiting_for_locks_is_measured() {
    let recorder = Arc::new(Recorder::default());
    let db = Db::with_metrics(Arc::clone(&recorder) as Arc<dyn Metrics>);
    let (one, two) = (items(&db, "one"), items(&db, "two"));

    db.handle("writer").write(&[&two, &one]).abort();

    let waits: Vec<_> = recorder.waits.lock().clone();
    assert_eq!(
        waits,
        [
            ("writer".to_owned(), "one".to_owned()),
            ("writer".to_owned(), "two".to_owned())
        ]
    );
}
