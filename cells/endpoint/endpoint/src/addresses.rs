// SPDX-License-Identifier: Apache-2.0

//! Addresses of endpoints in IPAM: allocated again at the start, released at the end.

use std::{net::IpAddr, sync::Arc, time::Duration};

use hive::JobCtx;
use skep_endpoint_ipam::{AddressUsers, Ipam, IpamError};
use skep_identity::NumericIdentity;
use statedb::Obj;
use tokio::time::timeout;

use crate::{Endpoint, Endpoints, MetadataResolver, Phase, queue::DeletionQueue};

/// How long new endpoints wait for the list of pods: it tells which restored ones are to go.
const PODS: Duration = Duration::from_secs(10);
const CREATABLE: &str = "Endpoints may be created";

impl AddressUsers for Endpoints {
    fn endpoint(&self, ip: IpAddr) -> Option<u16> {
        let snapshot = self.db().read();
        let table = self.table();
        table
            .get(&snapshot, Endpoint::BY_ADDRESS.key(&ip))
            .map(|row| row.id)
    }
}

pub(crate) fn users(endpoints: Endpoints) -> Arc<dyn AddressUsers> {
    Arc::new(endpoints)
}

/// Takes over the endpoints of the run before, and lets new ones be created.
pub(crate) struct Takeover {
    pub(crate) endpoints: Endpoints,
    pub(crate) metadata: MetadataResolver,
    pub(crate) ipam: Option<Ipam>,
    pub(crate) queue: DeletionQueue,
}

/// Addresses that are not allocated again. Their endpoints are served all the same.
#[derive(Debug, thiserror::Error)]
#[error("{failed} addresses of endpoints are not allocated; {first}")]
struct NotAllocated {
    failed: usize,
    first: String,
}

impl Takeover {
    pub(crate) async fn run(&self, cx: &JobCtx) -> Result<(), statedb::Error> {
        self.endpoints.restored().await;
        let are_pods_known = timeout(PODS, self.pods_known(cx)).await.is_ok();
        if are_pods_known {
            self.reject_former_pods(true)?;
        } else {
            tracing::warn!("Pods of the node are not listed yet, keeping all endpoints until they are");
        }
        let failed = match &self.ipam {
            None => Vec::new(),
            Some(ipam) => {
                cx.health.starting("Waiting for the networks of the node");
                ipam.ready().await;
                let failed = self.allocate(ipam);
                ipam.restore_finished();
                failed
            }
        };
        self.queue.replay(&self.endpoints).await;
        self.endpoints.open_fence();
        match failed.first() {
            None => cx.health.ok(CREATABLE),
            Some(first) => {
                let failed = NotAllocated {
                    failed: failed.len(),
                    first: first.clone(),
                };
                cx.health.degraded(CREATABLE, &failed);
            }
        }
        if !are_pods_known {
            self.pods_known(cx).await;
            self.reject_former_pods(false)?;
        }
        if !failed.is_empty() {
            // The report ends with the job.
            cx.cancelled().await;
        }
        Ok(())
    }

    /// Waits until the pods of endpoints are listed.
    async fn pods_known(&self, cx: &JobCtx) {
        let Some(tables) = self.metadata.tables() else {
            return;
        };
        if self.restored().iter().all(|row| row.spec.pod.is_empty()) {
            return;
        }
        if !self.endpoints.is_accepting() {
            cx.health.starting("Waiting for the pods of the node");
        }
        tables.pods.wait_initialized(self.endpoints.db()).await;
    }

    /// Deletes endpoints whose pod does not exist any more. Before their addresses are allocated again, none are released.
    fn reject_former_pods(&self, keeps_addresses: bool) -> Result<(), statedb::Error> {
        let Some(tables) = self.metadata.tables() else {
            return Ok(());
        };
        let snapshot = self.endpoints.db().read();
        for row in self.restored() {
            let Some(pod) = row.spec.pod_name() else { continue };
            if !MetadataResolver::has_pod(tables, &snapshot, &pod) {
                tracing::info!(
                    endpoint = row.id,
                    pod,
                    "Pod of endpoint is gone, deleting endpoint"
                );
                self.endpoints.disconnect_with(row.id, keeps_addresses)?;
            }
        }
        Ok(())
    }

    fn restored(&self) -> Vec<Obj<Endpoint>> {
        let snapshot = self.endpoints.db().read();
        let table = self.endpoints.table();
        let rows = table.all(&snapshot).filter(|row| row.phase == Phase::Restored);
        rows.cloned().collect()
    }

    /// Allocates the addresses of endpoints; returns what is wrong with each that is not.
    fn allocate(&self, ipam: &Ipam) -> Vec<String> {
        let mut failed = Vec::new();
        for row in self.restored() {
            // Those of the health and the ingress endpoint are the node's.
            let is_of_node = row.identity == Some(NumericIdentity::HEALTH) || row.is_ingress();
            if row.spec.datapath.external_ipam || is_of_node {
                continue;
            }
            let owner = format!("{}/{} [restored]", row.spec.namespace, row.spec.pod);
            for (ip, pool) in row.spec.allocations() {
                if let Err(error) = ipam.allocate_ip(ip, &owner, pool_or_default(pool, ipam)) {
                    tracing::warn!(endpoint = row.id, %ip, %error, "Cannot allocate address of restored endpoint");
                    failed.push(format!(
                        "endpoint {}, {ip}: {}",
                        row.id,
                        hive::error_chain(&error)
                    ));
                }
            }
        }
        failed
    }
}

/// Directories of former agents name no pool.
fn pool_or_default<'a>(pool: &'a str, ipam: &'a Ipam) -> &'a str {
    match pool {
        "" => ipam.default_pool(),
        pool => pool,
    }
}

/// Releases the addresses of endpoints of which nothing else is left.
pub(crate) fn release(ipam: &Ipam, gone: &[Obj<Endpoint>]) -> Result<(), IpamError> {
    let mut result = Ok(());
    if !ipam.is_ready() {
        return result;
    }
    let of_agent = gone
        .iter()
        .filter(|row| !row.keeps_addresses && !row.spec.datapath.external_ipam);
    for (ip, pool) in of_agent.flat_map(|row| row.spec.allocations()) {
        result = result.and(ipam.release(ip, pool_or_default(pool, ipam)));
    }
    result
}
