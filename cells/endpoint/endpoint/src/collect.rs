// SPDX-License-Identifier: Apache-2.0

//! Endpoints that end: those taken down leave the table, those whose interface is gone are deleted.

use std::{collections::BTreeSet, sync::Arc};

use hive::JobCtx;
use parking_lot::Mutex;

use crate::{EndpointMetrics, Endpoints, Interfaces, Phase};

/// Removes endpoints from the table of which nothing is left, and counts the others, until cancelled.
pub(crate) async fn remove_disconnected(
    endpoints: &Endpoints,
    metrics: &EndpointMetrics,
    cx: &JobCtx,
) -> Result<(), statedb::Error> {
    let table = endpoints.table();
    loop {
        let snapshot = endpoints.db().read();
        let changed = table.table_watch(&snapshot);
        metrics.count(&table, &snapshot);
        drop(snapshot);
        endpoints.remove_disconnected()?;
        cx.health.ok("Running");
        changed.closed().await;
    }
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
        /// Its name.
        name: String,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The table refused.
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
            let is_live = matches!(row.phase, Phase::Live | Phase::Restored);
            if !is_live {
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
            tracing::info!(
                endpoint = id,
                "the interface of an endpoint is gone: the endpoint is deleted"
            );
            self.endpoints.disconnect(*id)?;
        }
        Ok(())
    }
}
