// SPDX-License-Identifier: Apache-2.0

//! `cilium_vxlan`, the interface of the tunnel to other nodes, and the routes to it: networks of their pods go to
//! `cilium_host`, whose program encapsulates.

use std::{collections::BTreeMap, net::IpAddr, sync::Arc};

use futures::TryStreamExt as _;
use hive::{Cfg, Health, Job, JobCtx, Jobs, Params, SpawnError};
use ipnet::IpNet;
use netlink_packet_route::{
    address::AddressAttribute,
    link::{
        AfSpecInet6, AfSpecUnspec, In6AddrGenMode, InfoData, InfoKind, InfoVxlan, LinkAttribute, LinkFlags,
        LinkInfo, LinkMessage,
    },
    route::{RouteAttribute, RouteMessage, RouteMetric},
};
use rtnetlink::{Handle, LinkMessageBuilder, LinkUnspec, LinkVxlan, RouteMessageBuilder};
use skep_datapath_config::TunnelConfig;
use skep_node_manager::Node;
use statedb::{Db, Table};

use crate::{
    datapath::PacketDatapath,
    pair::{HOST, PairError, connected, failed, find},
    routes::{self, CHECK_INTERVAL, PROTOCOL, RETRY, Route, SETTLE},
};

/// The interface of the tunnel.
pub(crate) const VXLAN: &str = "cilium_vxlan";

/// How the interface should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TunnelPlan {
    /// UDP port that it receives on.
    pub(crate) port: u16,
    /// First and last source port; `None`: the kernel's.
    pub(crate) source_ports: Option<(u16, u16)>,
    /// MTU of the network between nodes: routes say how large packets inside may be.
    pub(crate) mtu: u32,
}

impl TunnelPlan {
    /// What the settings ask for; `None` without a tunnel.
    pub(crate) fn new(config: &TunnelConfig, mtu: u32) -> Option<Self> {
        config.is_tunnelled().then(|| Self {
            port: config.port(),
            source_ports: config.tunnel_source_port_range.range(),
            mtu,
        })
    }

    /// The interface cannot be changed to be this.
    fn needs_another(&self, link: &LinkMessage) -> bool {
        let infos = link.attributes.iter().find_map(|attribute| match attribute {
            LinkAttribute::LinkInfo(infos) => Some(infos.as_slice()),
            _ => None,
        });
        let infos = infos.unwrap_or_default();
        let data = infos.iter().find_map(|info| match info {
            LinkInfo::Data(InfoData::Vxlan(data)) => Some(data.as_slice()),
            _ => None,
        });
        let data = data.unwrap_or_default();
        !infos.contains(&LinkInfo::Kind(InfoKind::Vxlan))
            || !data.contains(&InfoVxlan::CollectMetadata(true))
            || !data.contains(&InfoVxlan::Port(self.port))
            || !data.contains(&InfoVxlan::PortRange(self.source_ports.unwrap_or((0, 0))))
    }
}

/// Makes the interface as planned, or removes it if there is no plan. Returns its index.
pub(crate) async fn ensure(plan: Option<&TunnelPlan>) -> Result<Option<u32>, PairError> {
    connected(async |handle| {
        let found = find(handle, VXLAN).await?;
        let Some(plan) = plan else {
            if let Some(link) = found {
                remove(handle, &link).await?;
                tracing::info!("interface cilium_vxlan removed: packets are routed");
            }
            return Ok(None);
        };
        let link = match found {
            Some(link) if plan.needs_another(&link) => {
                remove(handle, &link).await?;
                add(handle, plan).await?
            }
            Some(link) => link,
            None => add(handle, plan).await?,
        };
        set_up(handle, &link, plan.mtu).await?;
        Ok(Some(link.header.index))
    })
    .await
}

async fn remove(handle: &Handle, link: &LinkMessage) -> Result<(), PairError> {
    let delete = handle.link().del(link.header.index).execute();
    delete.await.map_err(failed(format!("remove {VXLAN}")))
}

async fn add(handle: &Handle, plan: &TunnelPlan) -> Result<LinkMessage, PairError> {
    let (first, last) = plan.source_ports.unwrap_or((0, 0));
    let link = LinkVxlan::new(VXLAN, 0)
        .collect_metadata(true)
        .learning(false)
        .port(plan.port)
        .port_range(first, last)
        .build();
    let what = format!("add {VXLAN} on UDP port {}", plan.port);
    handle.link().add(link).execute().await.map_err(failed(what))?;
    tracing::info!(port = plan.port, "interface cilium_vxlan added");
    let link = find(handle, VXLAN).await?.ok_or(PairError::Removed(VXLAN))?;
    without_addresses(handle, &link).await?;
    Ok(link)
}

/// Sets that the interface has no IPv6 addresses of its own, and sends no router solicitations.
async fn without_addresses(handle: &Handle, link: &LinkMessage) -> Result<(), PairError> {
    let mut change = LinkMessageBuilder::<LinkUnspec>::default()
        .index(link.header.index)
        .build();
    let of_ipv6 = vec![AfSpecInet6::AddrGenMode(In6AddrGenMode::None)];
    change
        .attributes
        .push(LinkAttribute::AfSpecUnspec(vec![AfSpecUnspec::Inet6(of_ipv6)]));
    match handle.link().set(change).execute().await {
        // The kernel has no IPv6.
        Err(rtnetlink::Error::NetlinkError(answer)) if answer.raw_code() == -libc::EAFNOSUPPORT => Ok(()),
        done => done.map_err(failed(format!("set {VXLAN} to have no addresses"))),
    }
}

async fn set_up(handle: &Handle, link: &LinkMessage, mtu: u32) -> Result<(), PairError> {
    if link.attributes.contains(&LinkAttribute::Mtu(mtu)) && link.header.flags.contains(LinkFlags::Up) {
        return Ok(());
    }
    let change = LinkMessageBuilder::<LinkUnspec>::default()
        .index(link.header.index)
        .mtu(mtu)
        .up();
    let set = handle.link().set(change.build()).execute();
    set.await
        .map_err(failed(format!("set {VXLAN} up with MTU {mtu}")))
}

#[derive(Params)]
pub(crate) struct RouteParams {
    db: Db,
    config: Cfg<TunnelConfig>,
    nodes: Option<Table<Node>>,
    datapath: Arc<PacketDatapath>,
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
    let mut loaded = params.datapath.watch_loaded();
    // The sender lives as long as the datapath.
    let _ = loaded.wait_for(|loaded| *loaded).await;
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

fn report(health: &Health, error: &PairError) {
    tracing::warn!(
        error = hive::error_chain(error),
        "routes to the tunnel are not as they should be"
    );
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
async fn route(wanted: &BTreeMap<IpNet, u32>, removes: bool) -> Result<usize, PairError> {
    connected(async |handle| {
        let Some(host) = find(handle, HOST).await? else {
            return if wanted.is_empty() {
                Ok(0)
            } else {
                Err(PairError::Removed(HOST))
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
async fn routers(handle: &Handle, index: u32) -> Result<Vec<IpAddr>, PairError> {
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
async fn list(handle: &Handle, index: u32) -> Result<(Vec<Route>, Vec<IpNet>), PairError> {
    let mut to_host = routes::list(handle).await?;
    to_host.retain(|route| route.device == Some(index));
    let (known, others): (Vec<_>, Vec<_>) = to_host.into_iter().partition(Route::is_ours);
    Ok((known, others.into_iter().map(|route| route.network).collect()))
}

#[cfg(test)]
mod tests {
    use skep_bpf_sys::testing::Node as TestNode;
    use skep_datapath_config::RoutingMode;
    use skep_ipcache::Source;
    use skep_k8s_types::slim::NodeAddressType;
    use skep_node_manager::NodeKey;

    use super::*;

    fn plan(port: u16) -> TunnelPlan {
        TunnelPlan {
            port,
            source_ports: None,
            mtu: 1500,
        }
    }

    /// Runs a test in a network namespace of its own.
    fn in_namespace(test: impl AsyncFnOnce() -> Result<(), PairError> + Send) {
        let done: std::io::Result<()> = TestNode::run("tunnel", |_| {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()?;
            runtime.block_on(test()).map_err(std::io::Error::other)
        });
        done.unwrap();
    }

    async fn link(name: &str) -> Option<LinkMessage> {
        connected(async |handle| find(handle, name).await).await.unwrap()
    }

    #[test]
    fn the_interface_is_made_repaired_and_removed() {
        in_namespace(async || {
            let first = ensure(Some(&plan(8472))).await?.unwrap();
            let made = link(VXLAN).await.unwrap();
            assert!(made.header.flags.contains(LinkFlags::Up));
            assert_eq!(made.header.index, first);
            assert_eq!(ensure(Some(&plan(8472))).await?, Some(first), "it fits");

            // Another program sets it down.
            connected(async |handle| {
                let down = LinkMessageBuilder::<LinkUnspec>::default()
                    .index(first)
                    .mtu(1400)
                    .down();
                let set = handle.link().set(down.build()).execute();
                set.await.map_err(failed("set it down"))
            })
            .await?;
            assert_eq!(ensure(Some(&plan(8472))).await?, Some(first));
            let repaired = link(VXLAN).await.unwrap();
            assert!(repaired.header.flags.contains(LinkFlags::Up));
            assert!(repaired.attributes.contains(&LinkAttribute::Mtu(1500)));

            // Its port cannot be changed.
            let mut other = plan(4789);
            other.source_ports = Some((40_000, 50_000));
            let second = ensure(Some(&other)).await?.unwrap();
            assert_ne!(second, first);
            assert_eq!(ensure(Some(&other)).await?, Some(second));

            assert_eq!(ensure(None).await?, None);
            assert!(link(VXLAN).await.is_none());
            assert_eq!(ensure(None).await?, None);
            Ok(())
        });
    }

    #[test]
    fn a_port_that_is_taken_is_named() {
        in_namespace(async || {
            let taken = std::net::UdpSocket::bind((std::net::Ipv4Addr::UNSPECIFIED, 8472)).unwrap();
            let error = ensure(Some(&plan(8472))).await.unwrap_err();
            let text = hive::error_chain(&error);
            assert!(text.contains(VXLAN), "{text}");
            drop(taken);

            ensure(Some(&plan(8472))).await?;
            Ok(())
        });
    }

    fn node(name: &str, ip: &str, cidrs: &[&str]) -> Node {
        let mut node = Node::new(NodeKey::new("default", name), Source::Kubernetes);
        node.addresses = vec![(NodeAddressType::InternalIp, ip.parse().unwrap())];
        node.pod_cidrs = cidrs.iter().map(|cidr| cidr.parse().unwrap()).collect();
        node
    }

    #[test]
    fn networks_of_nodes_are_routed_with_what_fits_into_the_tunnel() {
        in_namespace(async || {
            let pair = crate::pair::PairPlan {
                mtu: 1500,
                router4: Some("10.1.0.1".parse().unwrap()),
                router6: Some("fd00:1::1".parse().unwrap()),
                networks: vec!["10.1.0.0/24".parse().unwrap(), "fd00:1::/64".parse().unwrap()],
                metric: 0,
            };
            // At the first attempt, with the IPv6 address as source.
            let host = crate::pair::ensure(&pair).await?.host;
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
                Ok::<_, PairError>((known, others))
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
