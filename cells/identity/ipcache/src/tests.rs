// SPDX-License-Identifier: Apache-2.0

//! Claims through the writer into the table and the map.

#![expect(
    clippy::disallowed_methods,
    reason = "what runs beside the test is no job of a hive"
)]

mod local;
mod model;
mod restart;
mod rows;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use skep_bpf_maps::MapSizes;
use skep_bpf_maps::node::{IPCACHE, IpcacheValue};
use skep_bpf_maps::text::Text;
use skep_bpf_sys::map::LateMap;
use skep_bpf_sys::{Map, MemoryMap, RawMap};
use skep_identity::{NumericIdentity, Reserved};
use statedb::Db;
use statedb::reconciler::{Config, NoHealth, Reconciler, StatusKind};
use tokio_util::sync::CancellationToken;

use crate::map::IpcacheMap;
use crate::reconciler::{self, MapOps};
use crate::{Claim, IpcacheEntry, Owner, Prefix, ResourceId, Source, Upserted, Writer};

fn prefix(text: &str) -> Prefix {
    text.parse().unwrap()
}

fn owner(source: Source, name: &str) -> Owner {
    Owner::new(source, ResourceId::new("test", "", name))
}

fn number(source: Source, name: &str, identity: u32) -> Claim {
    Claim::identity(owner(source, name), NumericIdentity::new(identity))
}

fn label(source: Source, name: &str, label: Reserved) -> Claim {
    Claim::labels(owner(source, name), label)
}

/// A writer, a map, and the reconciler between them.
struct World {
    writer: Writer,
    map: IpcacheMap,
    late: Arc<LateMap>,
    stop: CancellationToken,
    running: tokio::task::JoinHandle<()>,
}

impl World {
    fn start() -> Self {
        let world = Self::start_without_map();
        world.open(&[]);
        world
    }

    /// Starts before the map is open.
    fn start_without_map() -> Self {
        let late = Arc::new(LateMap::new(*IPCACHE.spec(&MapSizes::default()).raw()));
        Self::start_on(late.clone(), late)
    }

    fn start_on(raw: Arc<dyn RawMap>, late: Arc<LateMap>) -> Self {
        let db = Db::new();
        let table = crate::table::new(db.clone()).unwrap();
        let writer = Writer::new(db.clone(), table.clone());
        let map = Map::from_raw(raw).unwrap();
        let ops = MapOps::new(table.reader(), map.clone());
        let config = Config {
            retry_min: Duration::from_millis(5),
            retry_max: Duration::from_millis(20),
            ..reconciler::config()
        };
        let reconciler = Reconciler::new(&db, table, IpcacheEntry::STATUS, ops, config);
        let stop = CancellationToken::new();
        let token = stop.clone();
        let running = tokio::spawn(async move { reconciler.run(&token, &NoHealth).await });
        Self {
            writer,
            map,
            late,
            stop,
            running,
        }
    }

    /// Opens the map with these entries.
    fn open(&self, entries: &[(&str, u32)]) {
        let memory = Arc::new(MemoryMap::create(self.late.spec()).unwrap());
        let map = IpcacheMap::from_raw(memory.clone()).unwrap();
        for (text, identity) in entries {
            map.update(&prefix(text).map_key(), &IpcacheValue::new(*identity))
                .unwrap();
        }
        self.late.fill(memory);
    }

    fn upsert(&self, text: &str, claim: Claim) -> Upserted {
        let mut txn = self.writer.write();
        let upserted = self.writer.upsert(&mut txn, prefix(text), claim).unwrap();
        txn.commit();
        upserted
    }

    fn delete(&self, text: &str, owner: &Owner) -> bool {
        let mut txn = self.writer.write();
        let deleted = self.writer.delete(&mut txn, prefix(text), owner).unwrap();
        txn.commit();
        deleted
    }

    fn entries(&self) -> BTreeMap<String, String> {
        let entries = self.map.entries().unwrap();
        entries
            .iter()
            .map(|(key, value)| (key.text(), value.text()))
            .collect()
    }

    /// Waits until the map has these entries, `<prefix> <beginning of the text of the value>` each.
    #[track_caller]
    fn expect<'a>(&'a self, wanted: &'a [&'a str]) -> impl Future<Output = ()> + 'a {
        let caller = std::panic::Location::caller();
        async move {
            let is_there = || {
                let entries = self.entries();
                entries.len() == wanted.len()
                    && wanted.iter().all(|line| {
                        let (key, value) = line.split_once(' ').unwrap();
                        entries
                            .get(key)
                            .is_some_and(|found| format!("{found} ").starts_with(&format!("{value} ")))
                    })
            };
            let deadline = tokio::time::Instant::now() + Duration::from_secs(30);
            while !is_there() {
                assert!(
                    tokio::time::Instant::now() < deadline,
                    "{caller}: {:#?}, wanted {wanted:#?}",
                    self.entries()
                );
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
    }

    /// Waits until the row of a prefix has this status.
    async fn expect_status(&self, text: &str, kind: StatusKind) {
        let table = self.writer.table();
        let wait = async {
            loop {
                let snapshot = self.writer.db().read();
                let (row, changed) = table.get_watch(&snapshot, IpcacheEntry::BY_PREFIX.key(&prefix(text)));
                if row.is_some_and(|row| row.status.kind == kind) {
                    return;
                }
                changed.closed().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), wait)
            .await
            .unwrap_or_else(|_| panic!("{text} is not {kind}"));
    }

    async fn end(self) {
        self.stop.cancel();
        self.running.await.unwrap();
    }
}
