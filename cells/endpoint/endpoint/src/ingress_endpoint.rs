// SPDX-License-Identifier: Apache-2.0

//! The endpoint of the listener of Ingresses: it has the addresses of the node for it, no interface and no programs. Its policy is
//! computed for the proxy, and is in no map.

use std::time::Duration;

use hive::JobCtx;
use skep_endpoint_ipam::Ipam;
use skep_node_local::LocalNode;
use statedb::Table;
use tokio::time::timeout;

use crate::{CreateError, Endpoints};

/// Time between two looks, which create it again if it was deleted.
const LOOK: Duration = Duration::from_secs(60);

pub(crate) struct IngressEndpoint {
    pub(crate) endpoints: Endpoints,
    pub(crate) node: Table<LocalNode>,
    pub(crate) ipam: Option<Ipam>,
}

impl IngressEndpoint {
    /// Keeps the endpoint at the addresses of the local node.
    pub(crate) async fn follow(&self, cx: &JobCtx) -> Result<(), CreateError> {
        cx.health.starting("Waiting for the addresses of the node");
        self.endpoints.accepting().await;
        if let Some(ipam) = &self.ipam {
            // The sender is in `ipam`.
            _ = ipam.node_addressed().wait_for(|is_addressed| *is_addressed).await;
        }
        loop {
            let snapshot = self.endpoints.db().read();
            let changed = self.node.table_watch(&snapshot);
            let row = self.node.all(&snapshot).next();
            let addresses = row.map(|row| row.ingress.clone()).unwrap_or_default();
            drop(snapshot);
            self.endpoints.set_ingress(&addresses)?;
            match addresses.is_empty() {
                true => cx.health.ok("No addresses for Ingresses"),
                false => cx.health.ok("The ingress endpoint is there"),
            }
            // Whichever comes first.
            _ = timeout(LOOK, changed.closed()).await;
        }
    }
}
