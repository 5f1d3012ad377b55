// SPDX-License-Identifier: Apache-2.0

//! What is probed: addresses of all nodes.

use std::{collections::HashSet, net::IpAddr, time::Duration};

use skep_base_settings::{AddressFamilies, HealthCheckConfig, NodeName};
use skep_node_local::LocalNodeStore;
use skep_node_manager::{DEFAULT_CLUSTER, Node, NodeKey};

/// Interval of the probes of one address, without the part that the ratio scales.
const BASE: f64 = 10.0;
const SCALED: f64 = 100.0;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PathKind {
    Node,
    Endpoint,
}

impl PathKind {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Node => "node",
            Self::Endpoint => "endpoint",
        }
    }
}

/// A node and its addresses, the primary ones first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) name: String,
    pub(crate) is_local: bool,
    pub(crate) node: Vec<IpAddr>,
    pub(crate) endpoint: Vec<IpAddr>,
}

impl Target {
    pub(crate) fn new(node: &Node, families: &AddressFamilies, config: &HealthCheckConfig) -> Self {
        let is_enabled = |address: &IpAddr| match address {
            IpAddr::V4(_) => families.ipv4,
            IpAddr::V6(_) => families.ipv6,
        };
        let own = [true, false]
            .into_iter()
            .filter_map(|is_ipv4| node.node_ip(is_ipv4));
        let mut endpoint: Vec<IpAddr> = node
            .health
            .iter()
            .copied()
            .filter(|address| config.endpoints && is_enabled(address))
            .collect();
        endpoint.sort_by_key(IpAddr::is_ipv6);
        Self {
            name: full_name(&node.key),
            is_local: node.is_local(),
            node: own.filter(is_enabled).collect(),
            endpoint,
        }
    }

    pub(crate) fn addresses(&self, kind: PathKind) -> &[IpAddr] {
        match kind {
            PathKind::Node => &self.node,
            PathKind::Endpoint => &self.endpoint,
        }
    }
}

/// An address of a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Path {
    pub(crate) address: IpAddr,
    pub(crate) kind: PathKind,
    pub(crate) is_primary: bool,
    pub(crate) is_local: bool,
}

/// All addresses, each once.
pub(crate) fn paths(targets: &[Target]) -> Vec<Path> {
    let mut seen = HashSet::new();
    let of_target = |target: &Target, kind: PathKind| {
        let addresses = target.addresses(kind).to_vec();
        let is_local = target.is_local;
        addresses.into_iter().enumerate().map(move |(at, address)| Path {
            address,
            kind,
            is_primary: at == 0,
            is_local,
        })
    };
    targets
        .iter()
        .flat_map(|target| of_target(target, PathKind::Node).chain(of_target(target, PathKind::Endpoint)))
        .filter(|path| seen.insert(path.address))
        .collect()
}

/// Length of a round: it grows with the logarithm of the number of addresses.
pub(crate) fn interval(ratio: f64, addresses: usize) -> Duration {
    let seconds = (BASE + ratio * SCALED) * (addresses as f64).ln_1p();
    Duration::from_nanos((seconds * 1e9) as u64)
}

/// `cluster/name`; only `name` if the cluster has no name of its own.
fn full_name(key: &NodeKey) -> String {
    match key.cluster.as_str() {
        DEFAULT_CLUSTER => key.name.to_string(),
        _ => key.to_string(),
    }
}

pub(crate) fn local_name(local: &LocalNodeStore, name: &NodeName) -> String {
    let cluster = local.get().map(|node| node.cluster.clone()).unwrap_or_default();
    full_name(&NodeKey::new(&cluster, name.as_str()))
}
