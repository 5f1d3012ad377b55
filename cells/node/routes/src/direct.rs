// SPDX-License-Identifier: Apache-2.0

//! Routes to networks of other nodes' pods by those nodes, where they are on a network of this node
//! (`auto-direct-node-routes`). Routes of other programs are left alone.

use std::{
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    io,
    net::IpAddr,
    sync::Arc,
};

use hive::{Cfg, Health, Job, JobCtx, Jobs, Params, SpawnError};
use ipnet::IpNet;
use skep_base_net::{NetError, Netlink, Route, RouteFilter, packet::route::RouteType};
use skep_base_settings::{AddressFamilies, TunnelConfig};
use skep_datapath_hooks::HOST_DEVICE as HOST;
use skep_node_local::Device;
use skep_node_manager::{Node, NodeKey, NodeManager};
use statedb::{Db, Table};

use crate::routes::{PROTOCOL, RETRY, SETTLE, blocking, check_interval};

/// Why a network of a node's pods is not routed to the node.
#[derive(Debug, thiserror::Error)]
enum RouteFault {
    /// Nodes must be on one network. Turn `auto-direct-node-routes` off and let the network route, or set
    /// `direct-routing-skip-unreachable`.
    #[error("node {node} is not directly reachable: {address} is behind gateway {gateway}")]
    Gateway {
        node: NodeKey,
        address: IpAddr,
        gateway: IpAddr,
    },
    /// There is no route to the node: check the interfaces and routes of this node.
    #[error("node {node} is not reachable at {address}")]
    Unreachable {
        node: NodeKey,
        address: IpAddr,
        #[source]
        source: Option<io::Error>,
    },
    /// The node has an address of this node: one of them is configured wrong.
    #[error("node {node} is not another node: {address} is an address of this one")]
    Own { node: NodeKey, address: IpAddr },
    /// The node requires an address of the family of its pods.
    #[error("node {node} has no address of the family of its network {network}")]
    NoAddress { node: NodeKey, network: IpNet },
    /// Two nodes have one network: until one is deleted, or for good, if clusters have the same networks.
    #[error("network {network} of node {node} belongs to node {owner}")]
    Conflict {
        node: NodeKey,
        network: IpNet,
        owner: NodeKey,
    },
    /// Another program has a route to the network: remove one of the two.
    #[error("network {network} of node {node} at {address} has a route of another program")]
    Foreign {
        node: NodeKey,
        address: IpAddr,
        network: IpNet,
    },
    #[error("network {network} cannot be routed to node {node} at {address}")]
    Refused {
        node: NodeKey,
        address: IpAddr,
        network: IpNet,
        #[source]
        source: io::Error,
    },
}

impl RouteFault {
    fn node(&self) -> &NodeKey {
        match self {
            Self::Gateway { node, .. }
            | Self::Unreachable { node, .. }
            | Self::Own { node, .. }
            | Self::NoAddress { node, .. }
            | Self::Conflict { node, .. }
            | Self::Foreign { node, .. }
            | Self::Refused { node, .. } => node,
        }
    }
}

#[derive(Debug, thiserror::Error)]
#[error("{}", .0.iter().map(|fault| hive::error_chain(fault)).collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>().join("; "))]
struct NodeFaults(Vec<RouteFault>);

/// The node that has a network, and its address.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Target {
    node: NodeKey,
    address: IpAddr,
}

#[derive(Debug, Default)]
struct Plan {
    targets: BTreeMap<IpNet, Target>,
    faults: Vec<RouteFault>,
}

impl Plan {
    /// Networks of other nodes. A network of several nodes is the first one's, in the order of names; this node's always
    /// its own.
    fn new<'a>(nodes: impl Iterator<Item = &'a Node>, families: &AddressFamilies) -> Self {
        let (own, others): (Vec<&Node>, Vec<&Node>) = nodes.partition(|node| node.is_local());
        let mut owners: BTreeMap<IpNet, &NodeKey> = BTreeMap::new();
        let mut plan = Self::default();
        for node in own.into_iter().chain(others) {
            for network in &node.pod_cidrs {
                let (network, is_ipv4) = (network.trunc(), network.addr().is_ipv4());
                if !(if is_ipv4 { families.ipv4 } else { families.ipv6 }) {
                    continue;
                }
                match owners.entry(network) {
                    Entry::Vacant(entry) => {
                        entry.insert(&node.key);
                    }
                    Entry::Occupied(entry) if *entry.get() == &node.key => continue,
                    Entry::Occupied(entry) => {
                        plan.faults.push(RouteFault::Conflict {
                            node: node.key.clone(),
                            network,
                            owner: (*entry.get()).clone(),
                        });
                        continue;
                    }
                }
                let node_key = node.key.clone();
                match node.node_ip(is_ipv4) {
                    _ if node.is_local() => {}
                    Some(address) => {
                        let node = node_key;
                        plan.targets.insert(network, Target { node, address });
                    }
                    None => plan.faults.push(RouteFault::NoAddress {
                        node: node_key,
                        network,
                    }),
                }
            }
        }
        plan
    }
}

#[derive(Debug, Default)]
struct Outcome {
    /// Networks that are routed to their node.
    routed: usize,
    /// Networks of nodes behind a router, if those are skipped.
    skipped: usize,
    faults: Vec<RouteFault>,
}

/// Routes of the kernel to networks, in the main table.
struct Routes {
    ours: Vec<Route>,
    others: Vec<Route>,
}

fn is_ours(route: &Route) -> bool {
    route.protocol == PROTOCOL
}

impl Routes {
    /// Routes to `cilium_host` are none: they are the tunnel's.
    fn list(net: &Netlink) -> Result<Self, NetError> {
        let host = net.find_link(HOST)?.map(|link| link.index);
        let mut all = net.routes(&RouteFilter::default())?;
        all.retain(|route| route.is_in_main_table() && route.destination.prefix_len() > 0);
        let is_direct = |route: &Route| {
            is_ours(route) && route.gateway.is_some() && (host.is_none() || route.device != host)
        };
        let (ours, others) = all.into_iter().partition(is_direct);
        Ok(Self { ours, others })
    }

    /// Routes a network to its node by an interface. Replaces routes that were made here.
    fn set(&self, net: &Netlink, network: IpNet, target: &Target, device: u32) -> Result<(), RouteFault> {
        let is_there = |route: &&Route| route.destination == network && route.gateway == Some(target.address);
        let is_same = |route: &Route| route.device == Some(device);
        if self.ours.iter().filter(is_there).any(is_same) || self.others.iter().any(|route| is_there(&route))
        {
            return Ok(());
        }
        let mut all = self.ours.iter().chain(&self.others);
        let route = Route {
            device: Some(device),
            gateway: Some(target.address),
            protocol: PROTOCOL,
            ..Route::to(network)
        };
        let done = if all.any(|there| is_ours(there) && there.destination == network) {
            net.replace_route(&route)
        } else {
            net.add_route(&route)
        };
        let (node, address) = (target.node.clone(), target.address);
        done.map_err(|error| match error.errno() {
            Some(libc::EEXIST) => RouteFault::Foreign {
                node,
                address,
                network,
            },
            _ => RouteFault::Refused {
                node,
                address,
                network,
                source: error.into(),
            },
        })
    }
}

/// How this node reaches an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Path {
    /// By an interface: both are on one network.
    Direct(u32),
    Gateway(IpAddr),
    /// It is an address of this node.
    Own,
}

/// Looks an address up. The error is the kernel's: there is no path.
fn look_up(net: &Netlink, address: IpAddr) -> Result<Path, Option<io::Error>> {
    let answer = net.route_to(address).map_err(|error| Some(error.into()))?;
    let answer = answer.ok_or(None)?;
    let gateway = answer.gateway.filter(|gateway| *gateway != address);
    match (answer.kind, gateway, answer.device) {
        (RouteType::Local, _, _) => Ok(Path::Own),
        (RouteType::Unicast, Some(gateway), _) => Ok(Path::Gateway(gateway)),
        (RouteType::Unicast, None, Some(device)) => Ok(Path::Direct(device)),
        _ => Err(None),
    }
}

/// Makes the routes of a plan, and removes others that were made here if `removes`.
fn apply(plan: Plan, skips_routers: bool, removes: bool) -> Result<Outcome, NetError> {
    let net = Netlink::open()?;
    let routes = Routes::list(&net)?;
    let mut outcome = Outcome {
        faults: plan.faults,
        ..Outcome::default()
    };
    let mut skipped = BTreeSet::new();
    for (network, target) in &plan.targets {
        let (node, address) = (target.node.clone(), target.address);
        let done = match look_up(&net, address) {
            Ok(Path::Direct(device)) => routes.set(&net, *network, target, device),
            Ok(Path::Gateway(_)) if skips_routers => {
                skipped.insert(*network);
                continue;
            }
            Ok(Path::Gateway(gateway)) => Err(RouteFault::Gateway {
                node,
                address,
                gateway,
            }),
            Ok(Path::Own) => Err(RouteFault::Own { node, address }),
            Err(source) => Err(RouteFault::Unreachable {
                node,
                address,
                source,
            }),
        };
        match done {
            Ok(()) => outcome.routed += 1,
            Err(fault) => outcome.faults.push(fault),
        }
    }
    outcome.skipped = skipped.len();
    for route in routes.ours.into_iter().filter(|_| removes) {
        // A route to a node that cannot be reached right now stays: it is as right as it was.
        let target = plan.targets.get(&route.destination);
        let is_planned = target.is_some_and(|target| Some(target.address) == route.gateway);
        if !is_planned || skipped.contains(&route.destination) {
            net.delete_route(&route)?;
        }
    }
    Ok(outcome)
}

#[derive(Params)]
pub(crate) struct DirectRouteParams {
    db: Db,
    config: Cfg<TunnelConfig>,
    families: Cfg<AddressFamilies>,
    nodes: Option<NodeManager>,
    devices: Table<Device>,
    jobs: Jobs,
}

struct DirectRoutes {
    db: Db,
    config: Cfg<TunnelConfig>,
    families: Cfg<AddressFamilies>,
    nodes: Option<NodeManager>,
    devices: Table<Device>,
}

/// Registers the job that routes networks of other nodes' pods to those nodes.
pub(crate) fn start(params: DirectRouteParams) -> Result<(), SpawnError> {
    let work = Arc::new(DirectRoutes {
        db: params.db,
        config: params.config,
        families: params.families,
        nodes: params.nodes,
        devices: params.devices,
    });
    params
        .jobs
        .spawn(Job::once("direct-node-routes", move |cx: JobCtx| {
            let work = work.clone();
            async move {
                cx.until_cancelled(work.follow(&cx.health)).await;
            }
        }))
}

impl DirectRoutes {
    async fn follow(&self, health: &Health) {
        let mut reports = Reports::new(health.clone());
        let nodes = self
            .nodes
            .as_ref()
            .filter(|_| self.config.auto_direct_node_routes);
        let Some(nodes) = nodes else {
            while !reports.outcome(blocking(|| apply(Plan::default(), false, true)).await) {
                tokio::time::sleep(RETRY).await;
            }
            return health.ok("Nodes get no routes to pods of other nodes, see auto-direct-node-routes");
        };
        loop {
            let snapshot = self.db.read();
            let (is_complete, complete) = nodes.table().initialized_watch(&snapshot);
            let nodes_changed = nodes.table().table_watch(&snapshot);
            // Interfaces of pods come and go, and no node is reached by them.
            let selected = Device::BY_SELECTED.key(&true);
            let devices_changed = self.devices.list_watch(&snapshot, selected).1;
            let rows = nodes.nodes(&snapshot);
            let count = rows.len();
            let plan = Plan::new(rows.iter().map(|row| &**row), &self.families);
            drop(rows);
            drop(snapshot);
            let skips = self.config.direct_routing_skip_unreachable;
            let is_done = reports.outcome(blocking(move || apply(plan, skips, is_complete)).await);
            tokio::select! {
                () = complete.closed(), if !is_complete => {}
                () = nodes_changed.closed() => {}
                () = devices_changed.closed() => {}
                () = tokio::time::sleep(if is_done { check_interval(count) } else { RETRY }) => nodes.validated(count),
            }
            tokio::time::sleep(SETTLE).await;
        }
    }
}

/// Health of the job, and of each node with faults.
struct Reports {
    health: Health,
    nodes: BTreeMap<NodeKey, String>,
}

impl Reports {
    fn new(health: Health) -> Self {
        Self {
            health,
            nodes: BTreeMap::new(),
        }
    }

    /// Returns whether the routes of all nodes could be compared.
    fn outcome(&mut self, outcome: Result<Outcome, NetError>) -> bool {
        match outcome {
            Ok(outcome) => {
                let mut message = format!("{} networks of pods are routed to their nodes", outcome.routed);
                if outcome.skipped > 0 {
                    message.push_str(&format!(", {} are left to routers", outcome.skipped));
                }
                self.health.ok(message);
                self.faults(outcome.faults);
                true
            }
            Err(error) => {
                let message = "Cannot route to pods of some nodes, retrying";
                self.health.degraded(message, &error);
                false
            }
        }
    }

    fn faults(&mut self, faults: Vec<RouteFault>) {
        let mut now: BTreeMap<NodeKey, NodeFaults> = BTreeMap::new();
        for fault in faults {
            let key = fault.node().clone();
            now.entry(key)
                .or_insert_with(|| NodeFaults(Vec::new()))
                .0
                .push(fault);
        }
        for key in self.nodes.keys().filter(|key| !now.contains_key(*key)) {
            self.health.scope(key.to_string()).close();
        }
        self.nodes.retain(|key, _| now.contains_key(key));
        for (key, faults) in now {
            let text = faults.to_string();
            if self.nodes.get(&key) == Some(&text) {
                continue;
            }
            let of_node = self.health.scope(key.to_string());
            of_node.degraded("Pods of this node are not routed to it", &faults);
            self.nodes.insert(key, text);
        }
    }
}

#[cfg(test)]
mod tests;
