// SPDX-License-Identifier: Apache-2.0

//! Cell: reports to socket load balancing when the maps are filled, and which backends are gone.
//! Requires: [`InitWait`], `Table<Backend>`, [`Db`], `Arc<dyn SocketTermination>`. Provides: `Arc<dyn MapsWritten>`.

use std::{future::Future, net::SocketAddr, pin::Pin, sync::Arc};

use hive::{Cell, Job, JobCtx, Jobs, SpawnError};
use skep_datapath_hooks::{MapsWritten, SocketTermination};
use skep_loadbalancer_model::{BACKENDS_BY_ADDRESS, Backend, L3n4Addr};
use statedb::{Change, ChangeIterator, Db, Snapshot, Table};
use tokio::sync::Mutex;

use crate::InitWait;

/// Reports to socket load balancing when replaced maps are filled, and backends that are gone.
pub fn cell() -> Cell {
    Cell::module("socket-lb-services", "Services for socket load balancing")
        .provide(written)
        .run(watch_backends)
}

hive::catalogue!(cell);

/// The first state of the load balancer is in the maps.
struct FirstState(InitWait);

impl MapsWritten for FirstState {
    fn written(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(self.0.wait())
    }
}

fn written(wait: InitWait) -> Arc<dyn MapsWritten> {
    Arc::new(FirstState(wait))
}

fn watch_backends(
    backends: Table<Backend>,
    db: Db,
    dead: Arc<dyn SocketTermination>,
    jobs: Jobs,
) -> Result<(), SpawnError> {
    if !dead.is_enabled() {
        return Ok(());
    }
    // From here on, not from when the job gets to run: a backend may come and go in between. Kept over restarts.
    let mut changes = backends.follow(&db);
    report(&backends, &mut changes, &db.read(), &*dead);
    let changes = Arc::new(Mutex::new(changes));
    jobs.spawn(Job::once("watch-backends", move |cx: JobCtx| {
        let (backends, db, dead) = (backends.clone(), db.clone(), dead.clone());
        let changes = changes.clone();
        async move {
            let mut changes = changes.lock().await;
            loop {
                let snapshot = tokio::select! {
                    snapshot = changes.wait(&db) => snapshot,
                    () = cx.token.cancelled() => return,
                };
                report(&backends, &mut changes, &snapshot, &*dead);
            }
        }
    }))
}

/// Reports the addresses among the changes that no service has alive any more.
fn report(
    backends: &Table<Backend>,
    changes: &mut ChangeIterator<Backend>,
    snapshot: &Snapshot,
    dead: &dyn SocketTermination,
) {
    for change in changes.next(snapshot) {
        let (Change::Upsert(backend) | Change::Delete { object: backend, .. }) = &change else {
            continue;
        };
        let address: &L3n4Addr = &backend.params.address;
        let peer = SocketAddr::new(address.ip(), address.port());
        let is_alive = backends
            .list(snapshot, BACKENDS_BY_ADDRESS.key(address))
            .any(|row| row.is_alive());
        if is_alive {
            dead.revoke(peer, address.proto().number());
        } else {
            dead.report(peer, address.proto().number());
        }
    }
}

#[cfg(test)]
mod tests {
    use skep_loadbalancer_model::{BackendParams, BackendState, L4Proto, Source, Tables};

    use super::*;

    /// Records what is reported and not revoked.
    #[derive(Default)]
    struct Dead(std::sync::Mutex<std::collections::BTreeSet<u16>>);

    impl SocketTermination for Dead {
        fn is_enabled(&self) -> bool {
            true
        }

        fn report(&self, backend: SocketAddr, _: u8) {
            self.0.lock().unwrap().insert(backend.port());
        }

        fn revoke(&self, backend: SocketAddr, _: u8) {
            self.0.lock().unwrap().remove(&backend.port());
        }
    }

    fn row(service: &str, address: L3n4Addr, state: BackendState) -> Backend {
        let mut params = BackendParams::new(address, Source::Kubernetes);
        params.state = state;
        Backend::new(service.parse().unwrap(), params)
    }

    #[test]
    fn addresses_that_no_service_has_alive_are_reported() {
        let db = Db::new();
        let tables = Tables::new(&db).unwrap();
        let (_, _, readers) = tables.readers();
        let dead = Dead::default();
        let mut changes = readers.follow(&db);
        let address = |port| L3n4Addr::new([10, 244, 0, 1].into(), port, L4Proto::Udp);
        let change = |edit: &dyn Fn(&mut statedb::WriteTxn)| {
            let mut txn = db.write(&[&tables.backends]);
            edit(&mut txn);
            txn.commit();
        };
        let mut look = || {
            report(&readers, &mut changes, &db.read(), &dead);
            std::mem::take(&mut *dead.0.lock().unwrap())
                .into_iter()
                .collect::<Vec<u16>>()
        };

        change(&|txn| {
            for (service, port, state) in [
                ("a/one", 1, BackendState::Active),
                ("a/two", 1, BackendState::Active),
                ("a/one", 2, BackendState::Terminating),
                ("a/one", 3, BackendState::Quarantined),
            ] {
                tables
                    .backends
                    .insert(txn, row(service, address(port), state))
                    .unwrap();
            }
        });
        assert_eq!(look(), [3]);

        // The second service still has it.
        change(&|txn| {
            tables
                .backends
                .delete(txn, &row("a/one", address(1), BackendState::Active))
                .unwrap();
        });
        assert_eq!(look(), [0; 0]);

        change(&|txn| {
            tables
                .backends
                .delete(txn, &row("a/two", address(1), BackendState::Active))
                .unwrap();
            tables
                .backends
                .delete(txn, &row("a/one", address(2), BackendState::Terminating))
                .unwrap();
        });
        assert_eq!(look(), [1, 2]);
    }
}
