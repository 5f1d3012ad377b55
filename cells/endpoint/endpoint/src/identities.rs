// SPDX-License-Identifier: Apache-2.0

//! Controller: labels of endpoints → identities, which endpoints hold.
//!
//! A change of an endpoint, of its pod or of its namespace affects the endpoint: its labels are resolved, and if they differ from
//! those of its identity, their identity is allocated. A pod keeps its former identity for `identity-change-grace-period`, in
//! which other nodes learn of the new one. Without a store of identities all endpoints are `reserved:init`.

use std::{future, time::Duration};

use futures::FutureExt as _;
use skep_base_metrics::workqueue::WorkqueueRecorder;
use skep_identity::{NumericIdentity, Reserved};
use skep_identity_allocator::{AllocateError, Allocator};
use skep_k8s_controller::{Controller, Failure, Reconciler, Retry, Work};
use skep_k8s_reflectors::tables::{LocalPod, NamespaceRow};
use statedb::Change;
use tokio::time::sleep;

use crate::{Endpoint, Endpoints, MetadataResolver};

/// Endpoints whose identity is allocated at the same time; most of them wait.
const CONCURRENCY: usize = 1024;
/// Changes that are taken in at once.
const BATCH: usize = 1024;

#[derive(Debug, thiserror::Error)]
pub(crate) enum IdentityError {
    #[error(transparent)]
    Allocate(#[from] AllocateError),
    #[error(transparent)]
    Table(#[from] statedb::Error),
}

impl Failure for IdentityError {
    fn retry(&self) -> Retry {
        Retry::Backoff
    }
}

#[derive(Clone)]
pub(crate) struct IdentityReconciler {
    pub(crate) endpoints: Endpoints,
    pub(crate) metadata: MetadataResolver,
    pub(crate) allocator: Allocator,
    pub(crate) grace: Duration,
}

pub(crate) fn controller(
    reconciler: IdentityReconciler,
    queue: WorkqueueRecorder,
) -> Controller<IdentityReconciler> {
    let endpoints = reconciler.endpoints.clone();
    let db = endpoints.db().clone();
    let rows = endpoints.table().follow(&db);
    let rows = rows.stream(db.clone(), BATCH, Duration::ZERO);
    let tables = reconciler.metadata.tables();
    let pods = tables.map(|tables| tables.pods.follow(&db).stream(db.clone(), BATCH, Duration::ZERO));
    let namespaces = tables.map(|tables| {
        tables
            .namespaces
            .follow(&db)
            .stream(db.clone(), BATCH, Duration::ZERO)
    });
    let controller = Controller::new(reconciler, queue)
        .concurrency(CONCURRENCY)
        .wait_for(async move { endpoints.restored().await })
        .source(rows, |_, changes| {
            changes.into_iter().filter_map(changed).collect()
        });
    match pods.zip(namespaces) {
        None => controller,
        Some((pods, namespaces)) => controller
            .source(pods, |reconciler, changes| reconciler.of_pods(&changes))
            .source(namespaces, |reconciler, changes| {
                reconciler.of_namespaces(&changes)
            }),
    }
}

fn changed(change: Change<Endpoint>) -> Option<u16> {
    match change {
        Change::Upsert(row) => Some(row.id),
        Change::Delete { .. } | Change::Relist => None,
    }
}

impl IdentityReconciler {
    fn of_pods(&self, changes: &[Change<LocalPod>]) -> Vec<u16> {
        let snapshot = self.endpoints.db().read();
        let table = self.endpoints.table();
        let rows = changes.iter().flat_map(|change| match change {
            Change::Upsert(pod) => {
                let rows = table.list(&snapshot, Endpoint::BY_POD.key(pod.full_name().as_str()));
                rows.map(|row| row.id).collect()
            }
            Change::Delete { .. } | Change::Relist => Vec::new(),
        });
        rows.collect()
    }

    fn of_namespaces(&self, changes: &[Change<NamespaceRow>]) -> Vec<u16> {
        let snapshot = self.endpoints.db().read();
        let is_changed = |row: &Endpoint| {
            changes.iter().any(|change| match change {
                Change::Upsert(namespace) => namespace.name == row.spec.namespace.as_str(),
                Change::Delete { .. } | Change::Relist => false,
            })
        };
        let table = self.endpoints.table();
        let rows = table.all(&snapshot).filter(|row| is_changed(row));
        rows.map(|row| row.id).collect()
    }

    /// Takes over what Kubernetes knows of an endpoint.
    fn resolve(&self, id: u16) -> Result<Option<statedb::Obj<Endpoint>>, statedb::Error> {
        let snapshot = self.endpoints.db().read();
        let Some(row) = self
            .endpoints
            .get(&snapshot, id)
            .filter(|row| row.is_live() && !row.is_host)
        else {
            return Ok(None);
        };
        let Some(metadata) = self.metadata.resolve(&snapshot, &row) else {
            return Ok(Some(row));
        };
        if metadata.pod == row.pod && metadata.labels == row.labels {
            return Ok(Some(row));
        }
        self.endpoints.set_metadata(id, metadata)?;
        Ok(self.endpoints.get(&self.endpoints.db().read(), id))
    }
}

impl Reconciler for IdentityReconciler {
    type Key = u16;
    type Output = ();
    type Error = IdentityError;
    const KEYS: &'static str = "endpoints";
    const FAILED: &'static str = "have no identity of their labels";

    fn reconcile(&mut self, id: &u16) -> Work<Self> {
        let id = *id;
        let row = match self.resolve(id) {
            Ok(Some(row)) => row,
            Ok(None) => return future::ready(Ok(())).boxed(),
            Err(error) => return future::ready(Err(error.into())).boxed(),
        };
        let labels = row.labels.security();
        if self.endpoints.holds(id, &labels) {
            return future::ready(Ok(())).boxed();
        }
        let (endpoints, allocator, grace) = (self.endpoints.clone(), self.allocator.clone(), self.grace);
        async move {
            let held = match allocator.allocate(&labels).await {
                Err(AllocateError::NoStore(_)) => allocator.allocate(&Reserved::Init.into()).await?,
                held => held?,
            };
            let former = row.identity.filter(|former| *former != NumericIdentity::INIT);
            if former.is_some_and(|former| former != held.id()) {
                sleep(grace).await;
            }
            endpoints.hold(id, &labels, held)?;
            Ok(())
        }
        .boxed()
    }

    fn total(&self) -> usize {
        self.endpoints.table().len(&self.endpoints.db().read())
    }
}
