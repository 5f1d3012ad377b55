// SPDX-License-Identifier: Apache-2.0

//! Table `own-cilium-node`: the CiliumNode of this node, what IPAM reads of it.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
};

use futures::{Stream, stream};
use hive::Jobs;
use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use skep_base_settings::NodeName;
use skep_k8s_client::{Api, Client};
use skep_k8s_reflectors::{ReflectError, Reflector};
use skep_k8s_types::{selector::FieldSelector, slim::Metadata};
use statedb::{Db, Index, Row, RwTable, Table, row};

use crate::{Ends, NodeOwner, pools::PoolNetworks};

/// Reads `null` as the default.
fn or_default<'de, D, T>(from: D) -> Result<T, D::Error>
where
    D: serde::Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Option::deserialize(from).map(Option::unwrap_or_default)
}

/// A CiliumNode.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct IpamNode {
    #[serde(deserialize_with = "or_default")]
    pub metadata: Metadata,
    #[serde(deserialize_with = "or_default")]
    pub spec: IpamNodeSpec,
    #[serde(deserialize_with = "or_default")]
    pub status: IpamNodeStatus,
}

skep_k8s_types::resource!(IpamNode, "cilium.io", "v2", "CiliumNode", "ciliumnodes", false);

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct IpamNodeSpec {
    #[serde(deserialize_with = "or_default")]
    pub addresses: Vec<NodeIp>,
    #[serde(deserialize_with = "or_default")]
    pub health: FamilyPair,
    #[serde(deserialize_with = "or_default")]
    pub ingress: FamilyPair,
    #[serde(deserialize_with = "or_default")]
    pub ipam: NodeIpam,
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeIp {
    #[serde(rename = "type", deserialize_with = "or_default")]
    pub kind: String,
    #[serde(deserialize_with = "or_default")]
    pub ip: String,
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct FamilyPair {
    #[serde(deserialize_with = "or_default")]
    pub ipv4: String,
    #[serde(deserialize_with = "or_default")]
    pub ipv6: String,
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeIpam {
    #[serde(rename = "podCIDRs", deserialize_with = "or_default")]
    pub pod_cidrs: Vec<String>,
    #[serde(rename = "pre-allocate", deserialize_with = "or_default")]
    pub pre_allocate: u64,
    #[serde(deserialize_with = "or_default")]
    pub pools: NodePools,
    /// Single addresses, with owner and resource.
    #[serde(deserialize_with = "or_default")]
    pub pool: BTreeMap<String, NodeAllocation>,
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct NodePools {
    #[serde(deserialize_with = "or_default")]
    pub allocated: Vec<AllocatedPool>,
    #[serde(deserialize_with = "or_default")]
    pub requested: Vec<RequestedPool>,
}

/// Networks of a pool.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct AllocatedPool {
    #[serde(
        rename = "allowFirstIP",
        deserialize_with = "or_default",
        skip_serializing_if = "std::ops::Not::not"
    )]
    pub allow_first_ip: bool,
    #[serde(
        rename = "allowLastIP",
        deserialize_with = "or_default",
        skip_serializing_if = "std::ops::Not::not"
    )]
    pub allow_last_ip: bool,
    #[serde(deserialize_with = "or_default")]
    pub cidrs: Vec<String>,
    pub pool: String,
}

/// Demand of a pool.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct RequestedPool {
    #[serde(deserialize_with = "or_default")]
    pub needed: Needed,
    pub pool: String,
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub struct Needed {
    #[serde(deserialize_with = "or_default", skip_serializing_if = "is_zero")]
    pub ipv4_addrs: u64,
    #[serde(deserialize_with = "or_default", skip_serializing_if = "is_zero")]
    pub ipv6_addrs: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct IpamNodeStatus {
    #[serde(deserialize_with = "or_default")]
    pub ipam: NodeIpamStatus,
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeIpamStatus {
    #[serde(deserialize_with = "or_default")]
    pub used: BTreeMap<String, NodeAllocation>,
    /// States of addresses that the controller wants back.
    #[serde(rename = "release-ips", deserialize_with = "or_default")]
    pub release_ips: BTreeMap<String, String>,
}

#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeAllocation {
    #[serde(deserialize_with = "or_default", skip_serializing_if = "String::is_empty")]
    pub owner: String,
    #[serde(deserialize_with = "or_default", skip_serializing_if = "String::is_empty")]
    pub resource: String,
}

/// State of an address that the controller wants back.
pub(crate) const MARKED: &str = "marked-for-release";
pub(crate) const READY: &str = "ready-for-release";
pub(crate) const KEPT: &str = "do-not-release";

impl IpamNode {
    /// Networks of mode `cluster-pool`.
    pub(crate) fn pod_cidrs(&self) -> Vec<IpNet> {
        let cidrs = self.spec.ipam.pod_cidrs.iter();
        cidrs.filter_map(|cidr| cidr.parse().ok()).collect()
    }

    /// Networks of mode `multi-pool`.
    pub(crate) fn networks(&self) -> BTreeMap<String, PoolNetworks> {
        let pools = self.spec.ipam.pools.allocated.iter().map(|pool| {
            let networks = PoolNetworks {
                networks: pool.cidrs.iter().filter_map(|cidr| cidr.parse().ok()).collect(),
                ends: Ends {
                    first: pool.allow_first_ip,
                    last: pool.allow_last_ip,
                },
            };
            (pool.pool.clone(), networks)
        });
        pools.collect()
    }

    /// Addresses of mode `crd`, with their resources.
    pub(crate) fn single_addresses(&self) -> BTreeMap<IpAddr, String> {
        let pool = self.spec.ipam.pool.iter();
        pool.filter_map(|(ip, allocation)| Some((ip.parse().ok()?, allocation.resource.clone())))
            .collect()
    }

    /// Addresses that the controller wants back, but for those that stay in use.
    pub(crate) fn withdrawn(&self) -> BTreeSet<IpAddr> {
        let states = self.status.ipam.release_ips.iter();
        let states = states.filter(|(_, state)| *state != KEPT);
        states.filter_map(|(ip, _)| ip.parse().ok()).collect()
    }

    /// Address of the previous run.
    pub(crate) fn address(&self, owner: NodeOwner, is_ipv4: bool) -> Option<IpAddr> {
        let pair = match owner {
            NodeOwner::Router => {
                let own = self
                    .spec
                    .addresses
                    .iter()
                    .filter(|address| address.kind == "CiliumInternalIP");
                let mut parsed = own.filter_map(|address| address.ip.parse::<IpAddr>().ok());
                return parsed.find(|ip| ip.is_ipv4() == is_ipv4);
            }
            NodeOwner::Ingress => &self.spec.ingress,
            NodeOwner::Health => &self.spec.health,
        };
        let text = if is_ipv4 { &pair.ipv4 } else { &pair.ipv6 };
        text.parse().ok()
    }
}

/// Row of `own-cilium-node`.
#[derive(Debug, Clone)]
pub struct OwnNode(pub Arc<IpamNode>);

impl OwnNode {
    /// Primary index: by name. There is one row.
    pub const BY_NAME: Index<Self, str> = Index::new("name", |row, keys| keys.add(&row.0.metadata.name));
}

impl Row for OwnNode {
    fn header() -> &'static [&'static str] {
        &["Name", "PodCIDRs", "Pools"]
    }

    fn cells(&self) -> Vec<String> {
        let ipam = &self.0.spec.ipam;
        let pools = ipam.pools.allocated.iter();
        let pools: Vec<String> = pools
            .map(|pool| format!("{}={}", pool.pool, pool.cidrs.join(",")))
            .collect();
        vec![
            self.0.metadata.name.to_string(),
            ipam.pod_cidrs.join(", "),
            pools.join(" "),
        ]
    }

    fn to_json(&self) -> Result<Value, row::BoxError> {
        row::to_json(&*self.0)
    }
}

pub(super) fn new_table(db: Db) -> Result<RwTable<OwnNode>, statedb::Error> {
    RwTable::builder("own-cilium-node")
        .primary(OwnNode::BY_NAME)
        .build(&db)
}

/// Keeps the table in sync with the CiliumNode of this node.
pub(super) fn reflect(
    db: &Db,
    table: &RwTable<OwnNode>,
    client: Arc<dyn Client>,
    name: &NodeName,
    jobs: &Jobs,
) -> Result<(), ReflectError> {
    let own = FieldSelector::equal("metadata.name", name.as_str());
    let source = Arc::new(Api::<IpamNode>::all(client).fields(own));
    Reflector::new("ciliumnodes", table.clone(), source, |node: &Arc<IpamNode>| {
        Some(OwnNode(node.clone()))
    })
    .optional_kind()
    .register(jobs, db)
}

/// The CiliumNode of this node: now, and after each change. Nothing is reported before the first list.
pub(super) fn changes(
    db: Db,
    table: Table<OwnNode>,
    name: &NodeName,
) -> impl Stream<Item = Option<Arc<IpamNode>>> + Send + 'static {
    let name = name.as_str().to_owned();
    let state = (db, table, name, None::<statedb::Watch>);
    stream::unfold(state, |(db, table, name, watch)| async move {
        match watch {
            None => _ = table.wait_initialized(&db).await,
            Some(watch) => watch.closed().await,
        }
        let snapshot = db.read();
        let (row, watch) = table.get_watch(&snapshot, OwnNode::BY_NAME.key(&name));
        let node = row.map(|row| row.0.clone());
        Some((node, (db, table, name, Some(watch))))
    })
}
