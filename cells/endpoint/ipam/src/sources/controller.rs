// SPDX-License-Identifier: Apache-2.0

//! Modes `multi-pool` and `crd`: the own CiliumNode says which addresses there are; demand, networks in use and addresses in
//! use are written there.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
    time::Duration,
};

use futures::{Stream, stream};
use ipnet::IpNet;
use serde_json::{Value, json};
use skep_base_metrics::workqueue::WorkqueueRecorder;
use skep_base_settings::NodeName;
use skep_k8s_client::{Client, Subresource, WriteOptions};
use skep_k8s_controller::{Controller, Failure, Reconciler, RequestError, Retry, Work, request};
use skep_k8s_types::Resource as _;
use skep_node_local::LocalNodeStore;
use statedb::{Db, Table};
use tokio::{sync::watch, time::Instant};

use super::node::{
    self, AllocatedPool, IpamNode, KEPT, MARKED, NodeAllocation, NodeIpamStatus, NodePools, OwnNode, READY,
    RequestedPool,
};
use crate::{Family, Ipam, allocator::Allocator, pools::Pools};

/// Demand expires without an event.
const REFRESH: Duration = Duration::from_secs(60);

/// Why the CiliumNode is not written.
#[derive(Debug, thiserror::Error)]
pub(super) enum NodeError {
    #[error(transparent)]
    Request(#[from] RequestError),
    #[error("it has changed since it was read")]
    Stale,
}

impl Failure for NodeError {
    fn retry(&self) -> Retry {
        match self {
            Self::Request(error) => error.retry(),
            Self::Stale => Retry::Conflict,
        }
    }
}

pub(super) struct NodeWriter {
    client: Arc<dyn Client>,
    ipam: Ipam,
    name: String,
    local: LocalNodeStore,
    node: Option<Arc<IpamNode>>,
    rate: Duration,
    /// When it was last written.
    written: Option<Instant>,
}

/// The parts of a CiliumNode that are written.
#[derive(PartialEq)]
struct Desired {
    pools: NodePools,
    status: NodeIpamStatus,
}

pub(super) fn controller(
    client: &Arc<dyn Client>,
    ipam: &Ipam,
    db: &Db,
    table: &Table<OwnNode>,
    name: &NodeName,
    rate: Duration,
    local: &LocalNodeStore,
) -> Controller<NodeWriter> {
    let nodes = node::changes(db.clone(), table.clone(), name);
    let (ready_db, ready_table) = (db.clone(), table.clone());
    let writer = NodeWriter {
        client: client.clone(),
        ipam: ipam.clone(),
        name: name.as_str().to_owned(),
        local: local.clone(),
        node: None,
        rate,
        written: None,
    };
    Controller::new(writer, WorkqueueRecorder::default())
        .concurrency(1)
        .source(nodes, NodeWriter::apply)
        .source(versions(ipam.changes()), |writer, ()| writer.key())
        .wait_for(async move { _ = ready_table.wait_initialized(&ready_db).await })
        .resync(REFRESH, NodeWriter::key)
}

fn versions(changes: watch::Receiver<u64>) -> impl Stream<Item = ()> + Send + 'static {
    stream::unfold(changes, |mut changes| async move {
        changes.changed().await.ok()?;
        Some(((), changes))
    })
}

fn texts<T: ToString>(items: impl IntoIterator<Item = T>) -> Vec<String> {
    items.into_iter().map(|item| item.to_string()).collect()
}

impl NodeWriter {
    fn key(&self) -> Vec<String> {
        vec![self.name.clone()]
    }

    /// Takes in the CiliumNode.
    fn apply(&mut self, node: Option<Arc<IpamNode>>) -> Vec<String> {
        if let Some(node) = &node {
            let default_pool = self.ipam.default_pool();
            let is_ready = self.ipam.change(|state| {
                Family::enabled(self.ipam.families()).all(|family| {
                    let Some(allocator) = state.allocator(family) else {
                        return false;
                    };
                    if let Some(single) = allocator.single() {
                        single.update(&node.single_addresses(), &node.withdrawn());
                        return single.total() > 0;
                    }
                    let Some(pools) = allocator.pools() else {
                        return false;
                    };
                    if node.spec.ipam.pre_allocate > 0 {
                        pools.set_pre_allocate(default_pool, node.spec.ipam.pre_allocate);
                    }
                    pools.update(&node.networks());
                    pools.has_initial()
                })
            });
            self.set_cidrs();
            if is_ready {
                self.ipam.set_ready();
            }
        }
        self.node = node;
        self.key()
    }

    /// Makes the networks of all pools those of the local node, the default pool's first.
    fn set_cidrs(&self) {
        let default_pool = self.ipam.default_pool();
        let mut networks: Vec<(bool, IpNet)> = Vec::new();
        self.ipam.inspect(|state| {
            for family in Family::enabled(self.ipam.families()) {
                let pools = state.allocator(family).as_mut().and_then(Allocator::pools);
                for (pool, own) in pools.map(|pools| pools.networks()).unwrap_or_default() {
                    networks.extend(own.into_iter().map(|network| (pool != default_pool, network)));
                }
            }
        });
        networks.sort();
        let cidrs = networks.into_iter().map(|(_, network)| network).collect();
        if let Err(error) = self.local.update(|node| node.set_ipam_cidrs(cidrs)) {
            tracing::error!(%error, "Cannot update the local node");
        }
    }

    fn desired(&self, node: &IpamNode) -> Desired {
        let is_restored = self.ipam.is_restored();
        let mut networks: BTreeMap<String, BTreeSet<IpNet>> = BTreeMap::new();
        let mut requested: BTreeMap<String, RequestedPool> = BTreeMap::new();
        let mut status = NodeIpamStatus::default();
        let mut release_ips = node.status.ipam.release_ips.clone();
        let mut has_pools = false;
        self.ipam.inspect(|state| {
            for family in Family::enabled(self.ipam.families()) {
                let Some(allocator) = state.allocator(family) else {
                    continue;
                };
                if let Some(single) = allocator.single() {
                    let used = single.addresses_in_use();
                    status.used.extend(used.iter().map(|(ip, address)| {
                        let (owner, resource) = (address.owner.clone(), address.resource.clone());
                        (ip.to_string(), NodeAllocation { owner, resource })
                    }));
                    for (ip, state) in &mut release_ips {
                        let Ok(ip) = ip.parse::<IpAddr>() else { continue };
                        if Family::of(ip) == family && state == MARKED && is_restored {
                            *state = if used.contains_key(&ip) { KEPT } else { READY }.to_owned();
                        }
                    }
                }
                let Some(pools) = allocator.pools() else { continue };
                has_pools = true;
                if is_restored {
                    pools.release_surplus();
                }
                collect(family, pools, &mut networks, &mut requested);
            }
        });
        status.release_ips = release_ips;
        let known = |pool: &str| {
            node.spec
                .ipam
                .pools
                .allocated
                .iter()
                .find(|known| known.pool == pool)
        };
        let allocated = networks.into_iter().map(|(pool, networks)| {
            let known = known(&pool);
            AllocatedPool {
                allow_first_ip: known.is_some_and(|known| known.allow_first_ip),
                allow_last_ip: known.is_some_and(|known| known.allow_last_ip),
                // IPv4 is before IPv6.
                cidrs: texts(networks),
                pool,
            }
        });
        let pools = NodePools {
            allocated: allocated.collect(),
            requested: requested.into_values().collect(),
        };
        Desired {
            // Those of another mode stay.
            pools: if has_pools {
                pools
            } else {
                node.spec.ipam.pools.clone()
            },
            status,
        }
    }
}

fn collect(
    family: Family,
    pools: &Pools,
    networks: &mut BTreeMap<String, BTreeSet<IpNet>>,
    requested: &mut BTreeMap<String, RequestedPool>,
) {
    for (pool, own) in pools.networks() {
        networks.entry(pool).or_default().extend(own);
    }
    for (pool, needed) in pools.needed() {
        let entry = requested.entry(pool.clone()).or_default();
        entry.pool = pool;
        match family {
            Family::V4 => entry.needed.ipv4_addrs = needed,
            Family::V6 => entry.needed.ipv6_addrs = needed,
        }
    }
}

impl Reconciler for NodeWriter {
    type Key = String;
    /// Whether it is written.
    type Output = bool;
    type Error = NodeError;
    const KEYS: &'static str = "CiliumNode";
    const FAILED: &'static str = "not written";

    fn reconcile(&mut self, _: &String) -> Work<Self> {
        let Some(node) = self.node.clone() else {
            return Box::pin(async { Ok(false) });
        };
        let desired = self.desired(&node);
        let client = self.client.clone();
        Box::pin(async move { write(&*client, &node, &desired).await })
    }

    fn finished(
        &mut self,
        _: &String,
        result: Result<bool, NodeError>,
    ) -> Result<Option<Duration>, NodeError> {
        if result? {
            self.written = Some(Instant::now());
        }
        Ok(None)
    }

    fn wait(&self) -> Duration {
        self.written.map_or(Duration::ZERO, |written| {
            self.rate.saturating_sub(written.elapsed())
        })
    }

    fn total(&self) -> usize {
        usize::from(self.node.is_some())
    }

    fn summary(&self, failed: usize) -> String {
        match (&self.node, failed) {
            (None, _) => "Waiting for the CiliumNode".to_owned(),
            (Some(_), 0) => self.ipam.status(),
            (Some(_), _) => "The CiliumNode cannot be written".to_owned(),
        }
    }
}

/// Member of an object, which is made an object if it is none.
fn member<'a>(object: &'a mut Value, name: &str) -> &'a mut Value {
    if !object[name].is_object() {
        object[name] = json!({});
    }
    &mut object[name]
}

fn set<T: serde::Serialize>(object: &mut Value, name: &str, list: &[T]) {
    match list {
        [] => _ = object.as_object_mut().and_then(|object| object.remove(name)),
        list => object[name] = json!(list),
    }
}

/// Writes what differs, into the version that it was computed from.
async fn write(client: &dyn Client, node: &IpamNode, desired: &Desired) -> Result<bool, NodeError> {
    let (pools, status) = (&node.spec.ipam.pools, &node.status.ipam);
    if *pools == desired.pools && *status == desired.status {
        return Ok(false);
    }
    let (kind, options) = (IpamNode::kind(), WriteOptions::default());
    let read = request(client.get(&kind, "", &node.metadata.name)).await?;
    let mut object = (*read.to_value().map_err(RequestError::from)?).clone();
    if object["metadata"]["resourceVersion"] != *node.metadata.resource_version {
        return Err(NodeError::Stale);
    }
    if *pools != desired.pools {
        let written = member(member(member(&mut object, "spec"), "ipam"), "pools");
        set(written, "allocated", &desired.pools.allocated);
        set(written, "requested", &desired.pools.requested);
        let stored = request(client.update(&kind, "", Subresource::None, object, &options)).await?;
        object = (*stored.to_value().map_err(RequestError::from)?).clone();
    }
    if *status != desired.status {
        let ipam = member(member(&mut object, "status"), "ipam");
        ipam["used"] = json!(desired.status.used);
        ipam["release-ips"] = json!(desired.status.release_ips);
        request(client.update(&kind, "", Subresource::Status, object, &options)).await?;
    }
    Ok(true)
}
