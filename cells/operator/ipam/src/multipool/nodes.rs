// SPDX-License-Identifier: Apache-2.0

//! Pools of CiliumPodIPPools, for nodes: `spec.ipam.pools`.

use std::collections::BTreeMap;
use std::sync::Arc;

use ipnet::IpNet;
use parking_lot::Mutex;
use serde_json::{Value, json};
use skep_k8s_controller::{Change, Store, Watches};
use skep_k8s_crds::node::{CiliumNode, IpamPools};
use skep_k8s_crds::pools::CiliumPodIPPool;

use super::pool::PoolSpec;
use super::pools::{Allocation, MultiPool, Request};
use crate::allocator::Family;
use crate::nodes::{Assigned, NodeAllocator, NodePool, member};
use crate::recorder::PoolUsage;

/// How errors of requests begin in the status of a node.
const FAILED: &str = "ipam-multi-pool-sync allocation failed";
/// How errors of the migration begin in the status of a node.
const MIGRATION_FAILED: &str = "migration to multi-pool IPAM failed";

/// Nodes with pod CIDRs of mode `cluster-pool` keep them, as networks of a pool.
#[derive(Debug, Clone)]
pub(crate) struct Migration {
    /// Name of the pool that has their networks.
    pub(crate) pool: String,
}

/// The part of a node's spec that is written.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct NodeSpec {
    allocated: Vec<Allocation>,
    /// Pod CIDRs and requests are removed.
    is_migrated: bool,
}

/// Keeps pools, and what nodes have of them.
pub(crate) struct MultiPoolNodes {
    pools: Arc<Mutex<MultiPool>>,
    migration: Option<Migration>,
    objects: Store<CiliumPodIPPool>,
    /// Pools that are not as they are specified, and why.
    faults: BTreeMap<String, String>,
}

impl MultiPoolNodes {
    pub(crate) fn new(pools: Arc<Mutex<MultiPool>>, migration: Option<Migration>) -> Self {
        // Each run starts from what the nodes hold.
        *pools.lock() = MultiPool::default();
        Self {
            pools,
            migration,
            objects: Store::default(),
            faults: BTreeMap::new(),
        }
    }

    /// Takes in a pool; returns whether it has changed. One with an invalid specification stays as it was.
    fn upsert(&mut self, pool: &CiliumPodIPPool) -> bool {
        let name = pool.metadata.name.as_str();
        let changed = PoolSpec::new(&pool.spec).and_then(|spec| self.pools.lock().upsert_pool(name, spec));
        match changed {
            Ok(changed) => {
                self.faults.remove(name);
                changed
            }
            Err(error) => {
                let text = hive::error_chain(&error).to_string();
                tracing::warn!(pool = name, error = %text, "Invalid CiliumPodIPPool");
                self.faults.insert(name.to_owned(), text);
                false
            }
        }
    }

    /// What a node has, with the pod CIDRs that become networks of a pool.
    fn held(&self, node: &CiliumNode) -> Vec<Allocation> {
        match self.migrated(node) {
            Some(migrated) => vec![migrated],
            None => allocated(node),
        }
    }

    fn migrated(&self, node: &CiliumNode) -> Option<Allocation> {
        let migration = self.migration.as_ref()?;
        let cidrs = node.spec.ipam.as_ref()?.pod_cidrs.as_ref()?;
        if cidrs.is_empty() {
            return None;
        }
        Some(Allocation {
            pool: migration.pool.clone(),
            cidrs: cidrs.clone(),
            ..Allocation::default()
        })
    }

    /// Pod CIDRs become networks of the pool only if it has them.
    fn migrate(&mut self, name: &str, migrated: Allocation, spec: NodeSpec) -> Assigned<NodeSpec> {
        let mut pools = self.pools.lock();
        let pool = pools.pool(&migrated.pool);
        let error = match pool {
            None => Some(format!("pool `{}` does not exist", migrated.pool)),
            Some(pool) => {
                let is_unfit = |text: &&String| text.parse().is_ok_and(|cidr: IpNet| !pool.has(&cidr));
                migrated.cidrs.iter().find(is_unfit).map(|cidr| {
                    format!(
                        "CIDR {cidr} is no network of pool `{}` and its mask size",
                        migrated.pool
                    )
                })
            }
        };
        let assignment = pools.assign(name, &[migrated], &[]);
        let conflict = assignment.duplicates.first().map(ToString::to_string);
        let malformed = assignment.errors.first().map(ToString::to_string);
        let error = error.or(malformed).or(conflict);
        Assigned {
            spec: match &error {
                None => NodeSpec {
                    allocated: assignment.allocated,
                    is_migrated: true,
                },
                Some(_) => spec,
            },
            duplicates: Vec::new(),
            error: error.map(|error| format!("{MIGRATION_FAILED}: {error}")),
        }
    }
}

fn pools(node: &CiliumNode) -> Option<&IpamPools> {
    node.spec.ipam.as_ref()?.pools.as_ref()
}

fn allocated(node: &CiliumNode) -> Vec<Allocation> {
    let allocated = pools(node).and_then(|pools| pools.allocated.as_ref());
    let allocation = |entry: &skep_k8s_crds::node::AllocatedPool| Allocation {
        pool: entry.pool.clone(),
        cidrs: entry.cidrs.clone().unwrap_or_default(),
        allow_first_ip: entry.allow_first_ip.unwrap_or_default(),
        allow_last_ip: entry.allow_last_ip.unwrap_or_default(),
    };
    allocated.into_iter().flatten().map(allocation).collect()
}

fn requests(node: &CiliumNode) -> Vec<Request> {
    let requested = pools(node).and_then(|pools| pools.requested.as_ref());
    let count = |number: Option<isize>| u128::try_from(number.unwrap_or_default()).unwrap_or_default();
    let request = |entry: &skep_k8s_crds::node::RequestedPool| {
        let needed = entry.needed.clone().unwrap_or_default();
        Request {
            pool: entry.pool.clone(),
            needed: [
                (Family::V4, count(needed.ipv4_addrs)),
                (Family::V6, count(needed.ipv6_addrs)),
            ],
        }
    };
    requested.into_iter().flatten().map(request).collect()
}

impl NodeAllocator for MultiPoolNodes {
    type Spec = NodeSpec;

    fn faults(&self) -> Vec<String> {
        let faults = self.faults.iter();
        faults
            .map(|(name, error)| format!("pool `{name}`: {error}"))
            .collect()
    }

    fn take_changed(&mut self) -> bool {
        self.pools.lock().take_changed()
    }

    fn usage(&self) -> Vec<PoolUsage> {
        self.pools.lock().usage()
    }

    fn restore(&mut self, node: &CiliumNode) {
        let held = self.held(node);
        self.pools.lock().restore(&node.metadata.name, &held);
    }

    fn assign(&mut self, node: &CiliumNode) -> Assigned<NodeSpec> {
        let name = node.metadata.name.as_str();
        if let Some(migrated) = self.migrated(node) {
            return self.migrate(name, migrated, Self::spec(node));
        }
        let mut assignment = self.pools.lock().assign(name, &allocated(node), &requests(node));
        let errors: Vec<String> = assignment.errors.iter().map(ToString::to_string).collect();
        Assigned {
            spec: NodeSpec {
                allocated: std::mem::take(&mut assignment.allocated),
                is_migrated: false,
            },
            duplicates: assignment.duplicates,
            error: (!errors.is_empty()).then(|| format!("{FAILED}: {}", errors.join("; "))),
        }
    }

    fn remove(&mut self, node: &str) {
        self.pools.lock().remove(node);
    }

    fn take_released(&mut self) -> bool {
        self.pools.lock().take_released()
    }

    fn spec(node: &CiliumNode) -> NodeSpec {
        NodeSpec {
            allocated: allocated(node),
            is_migrated: false,
        }
    }

    fn set_spec(object: &mut Value, spec: &NodeSpec) {
        let ipam = member(member(object, "spec"), "ipam");
        if spec.is_migrated
            && let Some(ipam) = ipam.as_object_mut()
        {
            ipam.shift_remove("podCIDRs");
            ipam.shift_remove("pools");
        }
        let pools = member(ipam, "pools");
        let allocated: Vec<Value> = spec.allocated.iter().map(Allocation::to_json).collect();
        match allocated.is_empty() {
            true => {
                _ = pools
                    .as_object_mut()
                    .and_then(|pools| pools.shift_remove("allocated"))
            }
            false => pools["allocated"] = json!(allocated),
        }
    }

    fn text(spec: &NodeSpec) -> String {
        let pools = spec.allocated.iter();
        let pools = pools.map(|allocation| format!("{}={}", allocation.pool, allocation.cidrs.join("+")));
        pools.collect::<Vec<_>>().join(",")
    }
}

impl Watches<CiliumPodIPPool> for NodePool<MultiPoolNodes> {
    fn store(&mut self) -> &mut Store<CiliumPodIPPool> {
        &mut self.pool.objects
    }

    /// All nodes, if the pool has changed.
    fn affected(&mut self, change: &Change<CiliumPodIPPool>) -> Vec<String> {
        let is_changed = match &change.new {
            Some(pool) => self.pool.upsert(pool),
            None => {
                let name = change.key.name.as_str();
                self.pool.faults.remove(name);
                self.pool.pools.lock().remove_pool(name);
                true
            }
        };
        let nodes = if is_changed { self.all() } else { Vec::new() };
        self.queue(nodes)
    }
}

impl Allocation {
    /// As in the spec of a CiliumNode: members that are false or empty are absent.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let mut entry = json!({ "pool": self.pool });
        for (member, is_set) in [
            ("allowFirstIP", self.allow_first_ip),
            ("allowLastIP", self.allow_last_ip),
        ] {
            if is_set {
                entry[member] = true.into();
            }
        }
        if !self.cidrs.is_empty() {
            entry["cidrs"] = json!(self.cidrs);
        }
        entry
    }
}

#[cfg(test)]
mod tests;
