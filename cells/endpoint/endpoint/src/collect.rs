// SPDX-License-Identifier: Apache-2.0

//! Endpoints that end: those taken down leave the table, those whose interface is gone are deleted.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use hive::JobCtx;
use parking_lot::Mutex;
use skep_base_net::NetError;
use skep_datapath_hooks::{EndpointFlows, ForgetError};
use skep_endpoint_ipam::{Ipam, IpamError};
use statedb::{Change, Obj};

use crate::{
    Endpoint, EndpointMetrics, EndpointState, Endpoints, Interfaces, addresses,
    unreachable::UnreachableRoutes,
};

/// Ends the life of endpoints that are taken down.
pub(crate) struct Removal {
    pub(crate) endpoints: Endpoints,
    /// What programs remember of flows, if they do.
    pub(crate) flows: Option<Arc<dyn EndpointFlows>>,
    pub(crate) ipam: Option<Ipam>,
    pub(crate) unreachable: UnreachableRoutes,
    pub(crate) metrics: Arc<EndpointMetrics>,
}

impl Removal {
    /// Forgets the flows of endpoints of which nothing else is left, removes their policies, adds unreachable routes to their
    /// addresses, releases these, and removes them from the table, so that ids and addresses may be used again; counts the others.
    pub(crate) async fn follow(&self, cx: &JobCtx) -> Result<(), statedb::Error> {
        let db = self.endpoints.db();
        let mut changes = self.endpoints.table().follow(db);
        let mut states: BTreeMap<u16, EndpointState> = BTreeMap::new();
        cx.health.ok("Running");
        loop {
            let snapshot = db.read();
            let (round, changed) = changes.next_watch(&snapshot);
            for change in round {
                match change {
                    Change::Relist => states.clear(),
                    Change::Upsert(row) => {
                        states.insert(row.id, row.state());
                    }
                    Change::Delete { object, .. } => {
                        states.remove(&object.id);
                    }
                }
            }
            self.metrics.count(&states);
            let table = self.endpoints.table();
            self.metrics
                .count_enforcement(table.all(&snapshot).map(|row| &**row));
            let is_gone = |(id, state): (&u16, &EndpointState)| {
                let row = (*state == EndpointState::Disconnected).then(|| self.endpoints.get(&snapshot, *id));
                row.flatten()
            };
            let gone: Vec<_> = states.iter().filter_map(is_gone).collect();
            drop(snapshot);
            if gone.is_empty() {
                changed.closed().await;
                continue;
            }
            match self.release(&gone).await {
                // Also if the one before could not be forgotten: nothing is left to be done about it.
                Ok(()) => cx.health.ok("Running"),
                // The address is not kept for it: an entry matters only to a flow with the same ports.
                Err(error) => cx.health.degraded("Cannot clean up deleted endpoint", &error),
            }
            let ids = gone.iter().map(|row| row.id);
            self.endpoints.policies().release(ids).await?;
            self.endpoints.remove(&gone)?;
        }
    }

    /// Leaves nothing undone for the error that it returns.
    async fn release(&self, gone: &[Obj<Endpoint>]) -> Result<(), ReleaseError> {
        let routes = self.unreachable.add(gone);
        let forgotten = self.forget(gone).await;
        // Before the rows go: a caller that waits for the deletion may allocate the addresses.
        let released = self
            .ipam
            .as_ref()
            .map_or(Ok(()), |ipam| addresses::release(ipam, gone));
        forgotten?;
        released?;
        Ok(routes?)
    }

    async fn forget(&self, gone: &[Obj<Endpoint>]) -> Result<(), ForgetError> {
        let Some(flows) = &self.flows else {
            return Ok(());
        };
        let addresses = gone.iter().flat_map(|row| row.spec.addresses());
        flows.forget(addresses.collect()).await
    }
}

/// What endpoints that are gone left behind. It keeps their addresses from no other endpoint.
#[derive(Debug, thiserror::Error)]
enum ReleaseError {
    #[error(transparent)]
    Flows(#[from] ForgetError),
    #[error(transparent)]
    Route(#[from] NetError),
    #[error(transparent)]
    Address(#[from] IpamError),
}

/// Finds endpoints whose interface is gone.
#[derive(Debug)]
pub(crate) struct Collector {
    endpoints: Endpoints,
    interfaces: Arc<dyn Interfaces>,
    /// Those that the last look missed.
    missed: Mutex<BTreeSet<u16>>,
}

/// Why endpoints without interface were not found or not deleted.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CollectError {
    /// It is not known whether an interface is there.
    #[error("looking for interface {name}")]
    Interface {
        name: String,
        #[source]
        source: std::io::Error,
    },
    #[error(transparent)]
    Table(#[from] statedb::Error),
}

impl Collector {
    pub(crate) fn new(endpoints: Endpoints, interfaces: Arc<dyn Interfaces>) -> Self {
        Self {
            endpoints,
            interfaces,
            missed: Mutex::default(),
        }
    }

    /// Looks once: deletes the endpoints that this look and the one before missed.
    pub(crate) fn look(&self) -> Result<(), CollectError> {
        let snapshot = self.endpoints.db().read();
        let mut missed = BTreeSet::new();
        for row in self.endpoints.table().all(&snapshot) {
            let name = &row.spec.interface;
            if !row.is_live() || row.is_host || row.is_ingress() {
                continue;
            }
            let index = self
                .interfaces
                .index(name)
                .map_err(|source| CollectError::Interface {
                    name: name.clone(),
                    source,
                })?;
            if index != Some(row.spec.ifindex) {
                missed.insert(row.id);
            }
        }
        let before = std::mem::replace(&mut *self.missed.lock(), missed.clone());
        for id in missed.intersection(&before) {
            tracing::info!(endpoint = id, "Interface of endpoint is gone, deleting endpoint");
            self.endpoints.disconnect(*id)?;
        }
        Ok(())
    }
}
