// SPDX-License-Identifier: Apache-2.0

//! Routes with a tunnel: networks of other nodes' pods go to `cilium_host`, whose program encapsulates.

use std::{collections::BTreeMap, net::IpAddr, sync::Arc};

use hive::{Cfg, Health, Job, JobCtx, Jobs, Params, SpawnError};
use ipnet::IpNet;
use skep_base_net::{Link, NetError, Netlink, Route, RouteFilter};
use skep_base_settings::{AddressFamilies, TunnelConfig};
use skep_datapath_hooks::{EndpointHooks, HOST_DEVICE as HOST};
use skep_node_manager::{Node, NodeManager};
use statedb::Db;

use crate::routes::{PROTOCOL, RETRY, SETTLE, blocking, check_interval};

#[derive(Params)]
pub(crate) struct RouteParams {
    db: Db,
    config: Cfg<TunnelConfig>,
    families: Cfg<AddressFamilies>,
    nodes: Option<NodeManager>,
    programs: Arc<dyn EndpointHooks>,
    jobs: Jobs,
}

/// Registers the job that routes networks of other nodes' pods to the tunnel.
pub(crate) fn start(params: RouteParams) -> Result<(), SpawnError> {
    let jobs = params.jobs.clone();
    let params = Arc::new(params);
    jobs.spawn(Job::once("tunnel-routes", move |cx: JobCtx| {
        let params = params.clone();
        async move {
            let token = cx.token.clone();
            tokio::select! {
                () = token.cancelled() => {}
                () = follow(&params, &cx.health) => {}
            }
        }
    }))
}

async fn follow(params: &RouteParams, health: &Health) {
    // The programs make `cilium_host`.
    params.programs.loaded().await;
    loop {
        let nodes = params.nodes.as_ref().filter(|_| params.config.is_tunnelled());
        let Some(nodes) = nodes else {
            match blocking(|| route(&BTreeMap::new(), true)).await {
                Ok(_) => return health.ok("Packets between nodes are routed"),
                Err(error) => report(health, &error),
            }
            tokio::time::sleep(RETRY).await;
            continue;
        };
        let snapshot = params.db.read();
        let table = nodes.table();
        let (is_complete, complete) = table.initialized_watch(&snapshot);
        let changed = table.table_watch(&snapshot);
        let rows: Vec<_> = table.all(&snapshot).collect();
        let all = rows.len();
        let mut wanted = networks(rows.iter().map(|row| &***row), &params.config);
        wanted.retain(|network, _| match network {
            IpNet::V4(_) => params.families.ipv4,
            IpNet::V6(_) => params.families.ipv6,
        });
        drop(rows);
        drop(snapshot);
        let pause = match blocking(move || route(&wanted, is_complete)).await {
            Ok(Routed { count, waiting: 0 }) => {
                health.ok(format!(
                    "{count} networks of other nodes' pods are reached by the tunnel"
                ));
                check_interval(all)
            }
            Ok(Routed { count, waiting }) => {
                health.ok(format!(
                    "{count} networks of other nodes' pods are reached by the tunnel, {waiting} wait for an address of {HOST}"
                ));
                SETTLE
            }
            Err(error) => {
                report(health, &error);
                RETRY
            }
        };
        tokio::select! {
            () = complete.closed(), if !is_complete => {}
            () = changed.closed() => {}
            () = tokio::time::sleep(pause) => nodes.validated(all),
        }
        tokio::time::sleep(SETTLE).await;
    }
}

fn report(health: &Health, error: &NetError) {
    health.degraded("Cannot route to pods of some nodes, retrying", error);
}

/// Networks of the pods of nodes, and how many bytes the tunnel to them takes.
fn networks<'a>(nodes: impl Iterator<Item = &'a Node>, config: &TunnelConfig) -> BTreeMap<IpNet, u32> {
    let mut found = BTreeMap::new();
    for node in nodes {
        let overhead = config.overhead(config.endpoint(node.node_ip(true), node.node_ip(false)));
        found.extend(node.pod_cidrs.iter().map(|network| (network.trunc(), overhead)));
    }
    found
}

/// Numbers of networks.
#[derive(Debug, Default, PartialEq)]
struct Routed {
    count: usize,
    /// Without an address of their family at `cilium_host`: IPAM may allocate the router's after the programs are loaded.
    waiting: usize,
}

/// Routes the networks, but for those that are routed to `cilium_host` as this node's, and removes other routes if
/// `removes`.
fn route(wanted: &BTreeMap<IpNet, u32>, removes: bool) -> Result<Routed, NetError> {
    let net = Netlink::open()?;
    let host = match net.link(HOST) {
        Err(NetError::Missing(_)) if wanted.is_empty() => return Ok(Routed::default()),
        host => host?,
    };
    let routers = routers(&net, &host)?;
    let (known, own) = list(&net, host.index)?;
    let mut routed = Routed::default();
    for (network, overhead) in wanted.iter().filter(|(network, _)| !own.contains(network)) {
        let router = routers
            .iter()
            .find(|router| router.is_ipv4() == network.addr().is_ipv4());
        let Some(router) = router else {
            routed.waiting += 1;
            continue;
        };
        routed.count += 1;
        let mtu = Some(host.mtu.saturating_sub(*overhead));
        let is_same = |route: &Route| route.destination == *network && route.mtu == mtu;
        if known.iter().any(is_same) {
            continue;
        }
        net.replace_route(&Route {
            device: Some(host.index),
            gateway: Some(*router).filter(IpAddr::is_ipv4),
            source: Some(*router),
            mtu,
            protocol: PROTOCOL,
            ..Route::to(*network)
        })?;
    }
    for route in known.into_iter().filter(|_| removes) {
        if !wanted.contains_key(&route.destination) || own.contains(&route.destination) {
            net.delete_route(&route)?;
        }
    }
    Ok(routed)
}

/// Addresses of `cilium_host`, but for link-local ones.
fn routers(net: &Netlink, host: &Link) -> Result<Vec<IpAddr>, NetError> {
    let addresses = net.addresses(host)?.into_iter().map(|found| found.address.addr());
    Ok(addresses
        .filter(|address| !matches!(address, IpAddr::V6(address) if address.is_unicast_link_local()))
        .collect())
}

/// Routes to `cilium_host`: those that were made here, and networks of others.
fn list(net: &Netlink, index: u32) -> Result<(Vec<Route>, Vec<IpNet>), NetError> {
    let mut to_host = net.routes(&RouteFilter {
        device: Some(index),
        ..RouteFilter::default()
    })?;
    to_host.retain(|route| route.destination.prefix_len() > 0);
    let (known, others): (Vec<_>, Vec<_>) = to_host.into_iter().partition(|route| route.protocol == PROTOCOL);
    Ok((known, others.into_iter().map(|route| route.destination).collect()))
}

#[cfg(test)]
mod tests {
    use skep_base_net::LinkSpec;
    use skep_base_settings::RoutingMode;
    use skep_bpf_sys::testing::Node as TestNode;
    use skep_datapath_hooks::NET_DEVICE;
    use skep_ipcache::Source;
    use skep_k8s_types::slim::NodeAddressType;
    use skep_node_manager::NodeKey;

    use super::*;

    fn node(name: &str, ip: &str, cidrs: &[&str]) -> Node {
        let mut node = Node::new(NodeKey::new("default", name), Source::Kubernetes);
        node.addresses = vec![(NodeAddressType::InternalIp, ip.parse().unwrap())];
        node.pod_cidrs = cidrs.iter().map(|cidr| cidr.parse().unwrap()).collect();
        node
    }

    /// Makes `cilium_host` with an address of each family, and routes the networks of this node to it.
    fn make_host(net: &Netlink) -> Result<u32, NetError> {
        net.add_link(LinkSpec::veth(HOST, LinkSpec::new().name(NET_DEVICE)))?;
        let host = net.link(HOST)?;
        for address in ["10.1.0.1/32", "fd00:1::1/128"] {
            net.add_address(&host, address.parse().unwrap())?;
        }
        for link in [&host, &net.link(NET_DEVICE)?] {
            net.set_link(link, LinkSpec::new().up())?;
        }
        for network in ["10.1.0.0/24", "fd00:1::/64"] {
            net.add_route(&Route {
                device: Some(host.index),
                ..Route::to(network.parse().unwrap())
            })?;
        }
        Ok(host.index)
    }

    /// Runs a test in a network namespace of its own.
    fn in_namespace(test: impl FnOnce(&Netlink) -> Result<(), NetError> + Send) {
        let done: std::io::Result<()> = TestNode::run("routes", |_| {
            Netlink::open()
                .and_then(|net| test(&net))
                .map_err(std::io::Error::other)
        });
        done.unwrap();
    }

    #[test]
    fn networks_of_nodes_are_routed_with_what_fits_into_the_tunnel() {
        in_namespace(|net| {
            let host = make_host(net)?;
            let nodes = [
                node("one", "192.0.2.1", &["10.1.0.0/24", "fd00:1::/64"]),
                node("two", "192.0.2.2", &["10.2.0.0/24", "fd00:2::/64"]),
                node("six", "2001:db8::3", &["10.3.0.0/24"]),
            ];
            let mut config = <TunnelConfig as hive::Config>::defaults().unwrap();
            config.routing_mode = RoutingMode::Tunnel;
            let networks = |nodes: &[Node]| networks(nodes.iter(), &config);
            let all = |count| Routed { count, waiting: 0 };
            let routes = || {
                let (known, others) = list(net, host)?;
                let mut known: Vec<_> = known
                    .into_iter()
                    .map(|route| (route.destination.to_string(), route.mtu.unwrap_or(0)))
                    .collect();
                known.sort();
                Ok::<_, NetError>((known, others))
            };

            assert_eq!(route(&networks(&nodes), true)?, all(3));
            let (known, others) = routes()?;
            let expected = [
                ("10.2.0.0/24", 1450),
                ("10.3.0.0/24", 1430),
                ("fd00:2::/64", 1450),
            ]
            .map(|(network, mtu)| (network.to_owned(), mtu));
            assert_eq!(known, expected);
            assert!(others.contains(&"10.1.0.0/24".parse().unwrap()), "{others:?}");

            // Not all nodes are known yet: nothing is removed.
            assert_eq!(route(&networks(&nodes[2..]), false)?, all(1));
            assert_eq!(routes()?.0.len(), 3);
            assert_eq!(route(&networks(&nodes[2..]), true)?, all(1));
            assert_eq!(routes()?.0, expected[1..2]);
            assert_eq!(route(&BTreeMap::new(), true)?, all(0));
            let (known, others) = routes()?;
            assert_eq!(known, []);
            assert!(others.contains(&"fd00:1::/64".parse().unwrap()), "{others:?}");
            Ok(())
        });
    }

    #[test]
    fn networks_wait_for_the_address_of_the_router() {
        in_namespace(|net| {
            let index = make_host(net)?;
            let host = net.link(HOST)?;
            net.delete_address(&host, "10.1.0.1/32".parse().unwrap())?;
            let wanted = BTreeMap::from(
                [("10.2.0.0/24", 50), ("fd00:2::/64", 50)]
                    .map(|(network, overhead)| (network.parse().unwrap(), overhead)),
            );

            assert_eq!(route(&wanted, true)?, Routed { count: 1, waiting: 1 });
            net.add_address(&host, "10.1.0.1/32".parse().unwrap())?;
            assert_eq!(route(&wanted, true)?, Routed { count: 2, waiting: 0 });

            assert_eq!(list(net, index)?.0.len(), 2);
            Ok(())
        });
    }
}
