// SPDX-License-Identifier: Apache-2.0

use std::{sync::Mutex, time::Duration};

use hive::{HealthSink, Hive, MemoryHealth, Settings};

use super::*;
use crate::{
    Index, Obj, Revision,
    reconciler::{Config, Ops, Round, Status, StatusField},
    row::BoxError,
};

#[derive(Clone)]
struct Thing {
    id: u64,
    status: Status,
}

const ID: Index<Thing, u64> = Index::new("id", |thing, keys| keys.add(&thing.id));

struct Nothing;

impl Ops<Thing> for Nothing {
    fn update(&mut self, _: &Round<'_>, _: Revision, thing: &mut Thing) -> Result<(), BoxError> {
        if thing.id == 13 {
            Err("unlucky".into())
        } else {
            Ok(())
        }
    }
    fn delete(&mut self, _: &Round<'_>, _: Revision, _: &Thing) -> Result<(), BoxError> {
        Ok(())
    }
    fn prune(&mut self, _: &Round<'_>, _: &mut dyn Iterator<Item = &Obj<Thing>>) -> Result<(), BoxError> {
        Ok(())
    }
}

fn things(db: Db) -> Result<RwTable<Thing>, crate::Error> {
    RwTable::builder("things").primary(ID).build_plain(&db)
}

fn reconcile(db: Db, table: RwTable<Thing>, jobs: Jobs) -> Result<ReconcilerHandle, SpawnError> {
    let field = StatusField {
        get: |thing: &Thing| thing.status.clone(),
        set: |thing, status| thing.status = status,
    };
    Reconciler::new(&db, table, field, Nothing, Config::default()).spawn(&jobs)
}

static SEEN: Mutex<Option<(Db, RwTable<Thing>, ReconcilerHandle)>> = Mutex::new(None);

fn keep(db: Db, table: RwTable<Thing>, handle: ReconcilerHandle) {
    *SEEN.lock().unwrap() = Some((db, table, handle));
}

static HEALTH: Mutex<Option<Arc<MemoryHealth>>> = Mutex::new(None);

fn memory() -> Arc<dyn HealthSink> {
    let memory = Arc::new(MemoryHealth::new());
    *HEALTH.lock().unwrap() = Some(Arc::clone(&memory));
    memory
}

/// One hive for all assertions: handles named after modules, jobs with their health, restart.
#[tokio::test(start_paused = true)]
async fn database_and_reconciler_live_in_a_hive() {
    let module = Cell::module("demo", "Demo")
        .provide_private(things)
        .provide_private(reconcile)
        .run(keep);
    let cells = [cell(), Cell::module("memory", "Memory").provide(memory), module];
    let built = Hive::new(cells)
        .plan(Settings::default())
        .unwrap()
        .build()
        .unwrap();
    let (db, table, handle) = SEEN.lock().unwrap().take().unwrap();
    assert_eq!(db.handle_name(), "demo");

    let running = built.start().await.unwrap();
    let put = |id| {
        let mut txn = db.write(&[&table]);
        table
            .insert(
                &mut txn,
                Thing {
                    id,
                    status: Status::pending(),
                },
            )
            .unwrap();
        table.revision(&txn.commit())
    };
    handle.wait_until_reconciled(put(1)).await;
    let health = HEALTH.lock().unwrap().clone().unwrap();
    let message = |id: &str| health.get(id).unwrap().message;
    assert_eq!(message("demo.job-reconcile"), "OK, 1 object(s)");
    assert_eq!(message("demo.job-refresh"), "Next refresh in 30m0s");

    handle.wait_until_reconciled(put(13)).await;
    let report = health.get("demo.job-reconcile").unwrap();
    assert_eq!(
        (report.level, &*report.message),
        (hive::Level::Degraded, "1 error(s)")
    );
    assert_eq!(report.error.as_deref(), Some("unlucky"));

    let built = running.stop().await.unwrap();
    let revision = put(2);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(handle.progress().revision < revision);
    let running = built.start().await.unwrap();
    handle.wait_until_reconciled(revision).await;
    running.stop().await.unwrap();
}
