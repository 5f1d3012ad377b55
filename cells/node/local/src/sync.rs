// SPDX-License-Identifier: Apache-2.0

//! Kubernetes Node, else `node-addresses` → `local-node`.

use std::net::IpAddr;
use std::sync::Arc;

use futures::StreamExt;
use hive::{BoxError, JobCtx, Jobs, Params};
use ipnet::IpNet;
use skep_k8s_client::{Api, Backoff, Client, ObjectEvent, WatcherEvent, watcher};
use skep_k8s_types::selector::FieldSelector;
use skep_k8s_types::slim::{Node, NodeAddressType};
use statedb::{Db, InitGuard, Table};

use crate::address::{NodeAddress, WILDCARD_DEVICE};
use crate::local::LocalNode;
use crate::store::LocalNodeStore;
use skep_base_settings::NodeName;

/// Taint of a node that the cluster autoscaler is about to delete: load balancers should drain it, as kube-proxy tells them
/// (KEP-3836).
const DELETION_TAINT: &str = "ToBeDeletedByClusterAutoscaler";

/// Pod CIDRs of clusters in which Nodes have none.
const POD_CIDR_ANNOTATIONS: [&str; 2] = [
    "network.cilium.io/ipv4-pod-cidr",
    "network.cilium.io/ipv6-pod-cidr",
];

#[derive(Params)]
pub(crate) struct SyncParams {
    db: Db,
    jobs: Jobs,
    store: LocalNodeStore,
    client: Option<Arc<dyn Client>>,
    name: NodeName,
    addresses: Option<Table<NodeAddress>>,
}

/// Registers the job that keeps `local-node`.
pub(crate) fn sync_local_node(params: SyncParams) -> Result<(), BoxError> {
    let initializer = params.store.register_initializer("local-node-sync")?;
    let client = params.client.filter(|client| client.is_enabled());
    let sync = Sync {
        db: params.db,
        store: params.store,
        name: params.name,
        addresses: params.addresses,
        client,
        initializer,
    };
    Ok(params.jobs.keep("local-node-sync", sync, Sync::run)?)
}

struct Sync {
    db: Db,
    store: LocalNodeStore,
    name: NodeName,
    addresses: Option<Table<NodeAddress>>,
    client: Option<Arc<dyn Client>>,
    initializer: InitGuard,
}

/// The Node of this node is not in the cluster: register it, or fix `--k8s-node-name`.
#[derive(Debug, thiserror::Error)]
#[error("node `{0}` is not in the cluster")]
struct Missing(NodeName);

impl Sync {
    async fn run(&self, cx: &JobCtx) -> Result<(), statedb::Error> {
        match &self.client {
            Some(client) => self.watch_kubernetes(client.clone(), cx).await,
            None => self.watch_addresses(cx).await,
        }
    }

    async fn watch_kubernetes(&self, client: Arc<dyn Client>, cx: &JobCtx) -> Result<(), statedb::Error> {
        let own = FieldSelector::equal("metadata.name", self.name.as_str());
        let mut events = watcher(Arc::new(Api::<Node>::all(client).fields(own)), Backoff::default());
        let missing = || {
            cx.health
                .degraded("Waiting for the Node", &Missing(self.name.clone()))
        };
        while let Some(event) = events.next().await {
            let node = match event {
                WatcherEvent::Replaced { mut items, invalid } => match (items.pop(), invalid.first()) {
                    (Some(node), _) => node,
                    (None, Some(error)) => {
                        cx.health.degraded("The Node is invalid", error);
                        continue;
                    }
                    (None, None) => {
                        missing();
                        continue;
                    }
                },
                WatcherEvent::Object(ObjectEvent::Applied(node)) => node,
                // A deleted Node may be registered again: its last state stays.
                WatcherEvent::Object(ObjectEvent::Deleted(..)) => {
                    missing();
                    continue;
                }
                WatcherEvent::Object(ObjectEvent::Invalid(error)) => {
                    cx.health.degraded("The Node is invalid", &error);
                    continue;
                }
                WatcherEvent::Failing(error) => {
                    cx.health
                        .degraded("Waiting for the Kubernetes API server", &*error);
                    continue;
                }
                WatcherEvent::Working => {
                    cx.health.ok("Watching the Node");
                    continue;
                }
                WatcherEvent::InitPage { .. } | WatcherEvent::InitDone => continue,
            };
            self.store.update(|local| apply_node(local, &node))?;
            self.store.initialized(&self.initializer)?;
            cx.health.ok("Watching the Node");
        }
        Ok(())
    }

    async fn watch_addresses(&self, cx: &JobCtx) -> Result<(), statedb::Error> {
        let Some(table) = &self.addresses else {
            self.store.initialized(&self.initializer)?;
            return Ok(());
        };
        loop {
            let snapshot = self.db.read();
            let (complete, completed) = table.initialized_watch(&snapshot);
            let (rows, changed) = table.list_watch(&snapshot, NodeAddress::BY_DEVICE.key(WILDCARD_DEVICE));
            let addresses: Vec<(NodeAddressType, IpAddr)> =
                rows.map(|row| (NodeAddressType::InternalIp, row.addr)).collect();
            self.store.update(|local| local.addresses = addresses)?;
            if complete {
                self.store.initialized(&self.initializer)?;
                cx.health.ok("Watching the devices");
            }
            tokio::select! {
                () = changed.closed() => {}
                () = completed.closed(), if !complete => {}
            }
        }
    }
}

/// Applies the Kubernetes Node. The agent's own addresses stay.
fn apply_node(local: &mut LocalNode, node: &Node) {
    let own = NodeAddressType::CiliumInternalIp;
    let mut addresses: Vec<(NodeAddressType, IpAddr)> = node
        .status
        .addresses
        .iter()
        .filter_map(|address| Some((address.kind.clone(), address.address.parse().ok()?)))
        .collect();
    addresses.extend(local.addresses.drain(..).filter(|(kind, _)| *kind == own));
    local.addresses = addresses;
    local.registered = true;
    local.is_leaving = node.metadata.deletion_timestamp.is_some()
        || node.spec.taints.iter().any(|taint| taint.key == DELETION_TAINT);
    local.labels = node.metadata.labels.clone();
    local.annotations = node.metadata.annotations.clone();
    local.uid = node.metadata.uid.clone();
    local.provider_id = node.spec.provider_id.clone();
    local.pod_cidrs = local.ipam_cidrs.clone().unwrap_or_else(|| pod_cidrs(node));
}

/// Pod CIDRs of a Node; of a family without one, that of its annotations.
fn pod_cidrs(node: &Node) -> Vec<IpNet> {
    let single = node.spec.pod_cidrs.is_empty().then_some(&node.spec.pod_cidr);
    let all = node.spec.pod_cidrs.iter().chain(single);
    let mut cidrs: Vec<IpNet> = all.filter_map(|cidr| cidr.parse().ok()).collect();
    for key in POD_CIDR_ANNOTATIONS {
        let annotated = node.metadata.annotations.get(key);
        let annotated: Option<IpNet> = annotated.and_then(|cidr| cidr.parse().ok());
        let is_missing = |net: &IpNet| {
            !cidrs
                .iter()
                .any(|cidr| cidr.addr().is_ipv4() == net.addr().is_ipv4())
        };
        cidrs.extend(annotated.filter(is_missing));
    }
    cidrs
}
