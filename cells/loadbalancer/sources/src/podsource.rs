// SPDX-License-Identifier: Apache-2.0

//! Job `reflect-pods`: follows the pods of this node for their host ports.

use std::collections::HashSet;

use hive::JobCtx;
use parking_lot::Mutex;
use skep_k8s_reflectors::tables::LocalPod;
use skep_loadbalancer_model::types::Frontend;
use statedb::{Change, Db, InitGuard, Snapshot, Table};

use super::pods::HostPorts;
use super::waiter::AddressWaiter;

/// What the job needs.
pub(super) struct PodSource {
    pub(super) db: Db,
    pub(super) pods: Table<LocalPod>,
    pub(super) done: InitGuard,
    /// Whose addresses host ports may have to wait for.
    pub(super) frontends: Table<Frontend>,
    pub(super) ports: Mutex<HostPorts>,
}

impl PodSource {
    /// Follows the pods of this node.
    pub(super) async fn run(&self, cx: &JobCtx) {
        cx.health.ok("Waiting for pods to be initialized");
        let mut snapshot = self.pods.wait_initialized(&self.db).await;
        let mut changes = self.pods.follow(&self.db);
        let mut is_first = true;
        let mut waiter = AddressWaiter::new(self.db.clone(), self.frontends.clone());
        loop {
            let changed: Vec<Change<LocalPod>> = changes.next(&snapshot).collect();
            waiter.begin();
            {
                let mut ports = self.ports.lock();
                if is_first || changed.iter().any(|change| matches!(change, Change::Relist)) {
                    ports.keep_only(&self.names(&snapshot));
                }
                let pods = changed.iter().filter_map(|change| {
                    let pod = &change.object()?.pod;
                    let present = (!change.is_delete()).then_some(&**pod);
                    Some((
                        pod.metadata.namespace.as_str(),
                        pod.metadata.name.as_str(),
                        present,
                    ))
                });
                ports.write(pods, Some(&self.done));
                match ports.refusals() {
                    None => cx.health.ok("Running"),
                    Some(refusals) => cx.health.degraded("Failure processing services", refusals),
                }
                waiter.attempted(ports.refusals().is_some());
            }
            is_first = false;
            snapshot = tokio::select! {
                snapshot = changes.wait(&self.db) => snapshot,
                () = waiter.wait() => self.db.read(),
            };
        }
    }

    fn names(&self, snapshot: &Snapshot) -> HashSet<String> {
        let name = |row: &LocalPod| format!("{}/{}", row.pod.metadata.namespace, row.pod.metadata.name);
        self.pods.all(snapshot).map(|row| name(row)).collect()
    }
}
