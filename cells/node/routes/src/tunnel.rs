// SPDX-License-Identifier: Apache-2.0

//! Routes with a tunnel: networks of other nodes' pods go to `cilium_host`, whose program encapsulates.

use std::{collections::BTreeMap, net::IpAddr, sync::Arc};

use futures::TryStreamExt as _;
use hive::{Cfg, Health, Job, JobCtx, Jobs, Params, SpawnError};
use ipnet::IpNet;
use netlink_packet_route::{
    address::AddressAttribute,
    link::LinkAttribute,
    route::{RouteAttribute, RouteMessage, RouteMetric},
};
use rtnetlink::{Handle, RouteMessageBuilder};
use skep_base_net::{NetError, connected, failed, find};
use skep_base_settings::TunnelConfig;
use skep_datapath_hooks::{EndpointHooks, HOST_DEVICE as HOST};
use skep_node_manager::Node;
use statedb::{Db, Table};

use crate::routes::{self, CHECK_INTERVAL, PROTOCOL, RETRY, Route, SETTLE};

#[derive(Params)]
pub(crate) struct RouteParams {
    db: Db,
    config: Cfg<TunnelConfig>,
    nodes: Option<Table<Node>>,
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
            match route(&BTreeMap::new(), true).await {
                Ok(_) => return health.ok("Packets between nodes are routed"),
                Err(error) => report(health, &error),
            }
            tokio::time::sleep(RETRY).await;
            continue;
        };
        let snapshot = params.db.read();
        let (is_complete, complete) = nodes.initialized_watch(&snapshot);
        let changed = nodes.table_watch(&snapshot);
        let rows: Vec<_> = nodes.all(&snapshot).collect();
        let wanted = networks(rows.iter().map(|row| &***row), &params.config);
        drop(rows);
        drop(snapshot);
        let pause = match route(&wanted, is_complete).await {
            Ok(count) => {
                health.ok(format!(
                    "{count} networks of other nodes' pods are reached by the tunnel"
                ));
                CHECK_INTERVAL
            }
            Err(error) => {
                report(health, &error);
                RETRY
            }
        };
        tokio::select! {
            () = complete.closed(), if !is_complete => {}
            () = changed.closed() => {}
            () = tokio::time::sleep(pause) => {}
        }
        tokio::time::sleep(SETTLE).await;
    }
}

fn report(health: &Health, error: &NetError) {
    health.degraded("Pods of some nodes are not reached, trying again", error);
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

/// Routes the networks, but for those that are routed to `cilium_host` as this node's, and removes other routes if
/// `removes`. Returns how many networks are routed.
async fn route(wanted: &BTreeMap<IpNet, u32>, removes: bool) -> Result<usize, NetError> {
    connected(async |handle| {
        let Some(host) = find(handle, HOST).await? else {
            return if wanted.is_empty() {
                Ok(0)
            } else {
                Err(NetError::Removed(HOST))
            };
        };
        let index = host.header.index;
        let mtu = host.attributes.iter().find_map(|attribute| match attribute {
            LinkAttribute::Mtu(mtu) => Some(*mtu),
            _ => None,
        });
        let routers = routers(handle, index).await?;
        let (known, own) = list(handle, index).await?;
        let mut count = 0;
        for (network, overhead) in wanted {
            let router = routers
                .iter()
                .find(|router| router.is_ipv4() == network.addr().is_ipv4());
            let Some(router) = router.filter(|_| !own.contains(network)) else {
                continue;
            };
            count += 1;
            let largest = mtu.map(|mtu| mtu.saturating_sub(*overhead));
            if known
                .iter()
                .any(|route| route.network == *network && route.mtu == largest)
            {
                continue;
            }
            let add = handle
                .route()
                .add(message(index, *network, *router, largest))
                .replace();
            add.execute()
                .await
                .map_err(failed(format!("route {network} to {HOST}")))?;
        }
        for route in known.into_iter().filter(|_| removes) {
            if wanted.contains_key(&route.network) && !own.contains(&route.network) {
                continue;
            }
            routes::remove(handle, route, HOST).await?;
        }
        Ok(count)
    })
    .await
}

fn message(index: u32, network: IpNet, router: IpAddr, mtu: Option<u32>) -> RouteMessage {
    let mut message = match (network, router) {
        (IpNet::V4(network), IpAddr::V4(router)) => RouteMessageBuilder::<std::net::Ipv4Addr>::new()
            .destination_prefix(network.network(), network.prefix_len())
            .gateway(router)
            .pref_source(router)
            .output_interface(index)
            .protocol(PROTOCOL)
            .build(),
        (network, router) => {
            let mut route = RouteMessageBuilder::<std::net::Ipv6Addr>::new()
                .output_interface(index)
                .protocol(PROTOCOL);
            if let (IpNet::V6(network), IpAddr::V6(router)) = (network, router) {
                route = route
                    .destination_prefix(network.network(), network.prefix_len())
                    .pref_source(router);
            }
            route.build()
        }
    };
    if let Some(mtu) = mtu {
        message
            .attributes
            .push(RouteAttribute::Metrics(vec![RouteMetric::Mtu(mtu)]));
    }
    message
}

/// Addresses of `cilium_host`, but for link-local ones.
async fn routers(handle: &Handle, index: u32) -> Result<Vec<IpAddr>, NetError> {
    let mut listed = handle.address().get().set_link_index_filter(index).execute();
    let mut found = Vec::new();
    while let Some(message) = listed
        .try_next()
        .await
        .map_err(failed("list addresses of cilium_host"))?
    {
        found.extend(message.attributes.iter().filter_map(|attribute| match attribute {
            AddressAttribute::Address(IpAddr::V6(address)) if address.is_unicast_link_local() => None,
            AddressAttribute::Address(address) => Some(*address),
            _ => None,
        }));
    }
    Ok(found)
}

/// Routes to `cilium_host`: those that were made here, and networks of others.
async fn list(handle: &Handle, index: u32) -> Result<(Vec<Route>, Vec<IpNet>), NetError> {
    let mut to_host = routes::list(handle).await?;
    to_host.retain(|route| route.device == Some(index));
    let (known, others): (Vec<_>, Vec<_>) = to_host.into_iter().partition(Route::is_ours);
    Ok((known, others.into_iter().map(|route| route.network).collect()))
}

#[cfg(test)]
mod tests {
    use netlink_packet_route::address::AddressFlags;
    use rtnetlink::{LinkMessageBuilder, LinkUnspec, LinkVeth};
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
    async fn make_host(handle: &Handle) -> Result<u32, NetError> {
        let pair = LinkVeth::new(HOST, NET_DEVICE).up().build();
        let add = handle.link().add(pair).execute();
        add.await.map_err(failed("add the pair"))?;
        let index = find(handle, HOST).await?.map_or(0, |link| link.header.index);
        for (router, bits) in [("10.1.0.1", 32), ("fd00:1::1", 128)] {
            let mut add = handle.address().add(index, router.parse().unwrap(), bits);
            let nodad = AddressAttribute::Flags(AddressFlags::Nodad);
            add.message_mut().attributes.push(nodad);
            add.execute().await.map_err(failed("add an address"))?;
        }
        let net = find(handle, NET_DEVICE)
            .await?
            .map_or(0, |link| link.header.index);
        let up = LinkMessageBuilder::<LinkUnspec>::default()
            .index(net)
            .up()
            .build();
        let up = handle.link().set(up).execute();
        up.await.map_err(failed("set the pair up"))?;
        let ipv4 = RouteMessageBuilder::<std::net::Ipv4Addr>::new()
            .destination_prefix("10.1.0.0".parse().unwrap(), 24)
            .output_interface(index)
            .build();
        let ipv6 = RouteMessageBuilder::<std::net::Ipv6Addr>::new()
            .destination_prefix("fd00:1::".parse().unwrap(), 64)
            .output_interface(index)
            .build();
        for route in [ipv4, ipv6] {
            let add = handle.route().add(route).execute();
            add.await.map_err(failed("add a route"))?;
        }
        Ok(index)
    }

    /// Runs a test in a network namespace of its own.
    fn in_namespace(test: impl AsyncFnOnce() -> Result<(), NetError> + Send) {
        let done: std::io::Result<()> = TestNode::run("routes", |_| {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()?;
            runtime.block_on(test()).map_err(std::io::Error::other)
        });
        done.unwrap();
    }

    #[test]
    fn networks_of_nodes_are_routed_with_what_fits_into_the_tunnel() {
        in_namespace(async || {
            let host = connected(async |handle| make_host(handle).await).await?;
            let nodes = [
                node("one", "192.0.2.1", &["10.1.0.0/24", "fd00:1::/64"]),
                node("two", "192.0.2.2", &["10.2.0.0/24", "fd00:2::/64"]),
                node("six", "2001:db8::3", &["10.3.0.0/24"]),
            ];
            let mut config = <TunnelConfig as hive::Config>::defaults().unwrap();
            config.routing_mode = RoutingMode::Tunnel;
            let networks = |nodes: &[Node]| networks(nodes.iter(), &config);
            let routed = async || {
                let (known, others) = connected(async |handle| list(handle, host).await).await?;
                let mut known: Vec<_> = known
                    .into_iter()
                    .map(|route| (route.network.to_string(), route.mtu.unwrap_or(0)))
                    .collect();
                known.sort();
                Ok::<_, NetError>((known, others))
            };

            assert_eq!(route(&networks(&nodes), true).await?, 3);
            let (known, others) = routed().await?;
            let expected = [
                ("10.2.0.0/24", 1450),
                ("10.3.0.0/24", 1430),
                ("fd00:2::/64", 1450),
            ]
            .map(|(network, mtu)| (network.to_owned(), mtu));
            assert_eq!(known, expected);
            assert!(others.contains(&"10.1.0.0/24".parse().unwrap()), "{others:?}");

            // Not all nodes are known yet: nothing is removed.
            assert_eq!(route(&networks(&nodes[2..]), false).await?, 1);
            assert_eq!(routed().await?.0.len(), 3);
            assert_eq!(route(&networks(&nodes[2..]), true).await?, 1);
            assert_eq!(routed().await?.0, expected[1..2]);
            assert_eq!(route(&BTreeMap::new(), true).await?, 0);
            let (known, others) = routed().await?;
            assert_eq!(known, []);
            assert!(others.contains(&"fd00:1::/64".parse().unwrap()), "{others:?}");
            Ok(())
        });
    }
}
