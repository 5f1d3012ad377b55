// SPDX-License-Identifier: Apache-2.0

//! The endpoint of the node itself: a row and a directory, with the labels of the Node; with the host firewall also its policy, and
//! an entry in `skep_endpoints`, by which programs find it. The datapath makes its interface and attaches the programs.

use std::{sync::Arc, time::Duration};

use hive::JobCtx;
use skep_base_net::NetError;
use skep_identity_labels::{LabelFilter, host_labels};
use skep_node_local::LocalNode;
use statedb::{Db, Table};
use tokio::time::timeout;

use crate::{Endpoints, Interfaces};

/// Its interface.
pub(crate) const INTERFACE: &str = "cilium_host";
/// Time between two looks at the interface, while it is missing and afterwards.
const MISSING: Duration = Duration::from_secs(1);
const PRESENT: Duration = Duration::from_secs(60);

pub(crate) struct HostEndpoint {
    pub(crate) endpoints: Endpoints,
    pub(crate) interfaces: Arc<dyn Interfaces>,
    pub(crate) node: Option<Table<LocalNode>>,
    pub(crate) db: Db,
    /// Which labels of the Node it has.
    pub(crate) labels: LabelFilter,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum HostEndpointError {
    #[error(transparent)]
    Interface(#[from] NetError),
    #[error(transparent)]
    Create(#[from] crate::CreateError),
}

impl HostEndpoint {
    pub(crate) async fn follow(&self, cx: &JobCtx) -> Result<(), HostEndpointError> {
        let Some(node) = &self.node else {
            return Ok(());
        };
        self.endpoints.restored().await;
        loop {
            let snapshot = self.db.read();
            let changed = node.table_watch(&snapshot);
            let labels = node
                .all(&snapshot)
                .next()
                .map(|row| host_labels(row.labels.iter(), &self.labels));
            drop(snapshot);
            let found = self.interfaces.find(INTERFACE)?;
            let pause = match (found, labels) {
                (Some((ifindex, mac)), Some(labels)) => {
                    self.endpoints.set_host(ifindex, mac, labels)?;
                    cx.health.ok("The host endpoint is there");
                    PRESENT
                }
                _ => {
                    cx.health.starting("Waiting for cilium_host");
                    MISSING
                }
            };
            // Whichever comes first.
            _ = timeout(pause, changed.closed()).await;
        }
    }
}
