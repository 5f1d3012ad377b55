// SPDX-License-Identifier: Apache-2.0

//! `cilium_host` and `cilium_net`: the pair of interfaces that joins the node and its pods.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use skep_base_net::{
    Link, LinkSpec, NetError, Netlink, Route,
    packet::{
        AddressFamily,
        link::LinkFlags,
        route::{RouteProtocol, RouteScope},
    },
};
use skep_datapath_hooks::{HOST_DEVICE as HOST, NET_DEVICE as NET};

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct PairPlan {
    pub(crate) mtu: u32,
    /// Addresses of `cilium_host`; those of a family without one are left alone.
    pub(crate) router4: Option<Ipv4Addr>,
    pub(crate) router6: Option<Ipv6Addr>,
    /// Networks routed to `cilium_host`.
    pub(crate) networks: Vec<IpNet>,
    /// Metric of the routes; 0: the kernel's default.
    pub(crate) metric: u32,
}

/// Indexes and MAC addresses of the pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Pair {
    pub(crate) host: u32,
    pub(crate) host_mac: [u8; 6],
    pub(crate) net: u32,
    pub(crate) net_mac: [u8; 6],
}

/// Priority of the rule that looks up local addresses: rules for packets to proxies come before it.
const LOCAL_RULE: u32 = 100;

/// Moves the rules of both families; a kernel without rules needs none.
fn move_local_rules(net: &Netlink) -> Result<(), NetError> {
    for family in [AddressFamily::Inet, AddressFamily::Inet6] {
        match net.move_local_rule(family, LOCAL_RULE) {
            Ok(true) => tracing::info!(
                ?family,
                priority = LOCAL_RULE,
                "Moved the rule of local addresses"
            ),
            Err(error) if !error.is_gone() => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// Makes the pair, its addresses and routes, or changes what is different.
pub(crate) fn ensure(plan: &PairPlan) -> Result<Pair, NetError> {
    let net = Netlink::open()?;
    move_local_rules(&net)?;
    let host = make(&net)?;
    let other = net.link(NET)?;
    for link in [&host, &other] {
        let is_ready = link.flags.contains(LinkFlags::Up | LinkFlags::Noarp);
        if link.mtu != plan.mtu || !is_ready {
            // No host answers ARP for addresses of pods there: programs write the Ethernet header.
            net.set_link(link, LinkSpec::new().mtu(plan.mtu).no_arp().up())?;
        }
    }
    let routers = [plan.router4.map(IpAddr::from), plan.router6.map(IpAddr::from)];
    for router in routers.into_iter().flatten() {
        set_address(&net, &host, router)?;
    }
    if let Some(router) = plan.router4 {
        // Routes of this node's and of other nodes' pods have it as gateway.
        net.replace_route(&Route {
            scope: RouteScope::Link,
            ..route_to(host.index, IpAddr::V4(router).into(), plan)
        })?;
    }
    for network in &plan.networks {
        let gateway = match network {
            IpNet::V4(_) => plan.router4.map(IpAddr::from),
            IpNet::V6(_) => None,
        };
        let source = gateway.or_else(|| match network {
            IpNet::V4(_) => None,
            IpNet::V6(_) => plan.router6.map(IpAddr::from),
        });
        // Without a router there are no pods of this family.
        if source.is_some() {
            net.replace_route(&Route {
                gateway,
                source,
                ..route_to(host.index, *network, plan)
            })?;
        }
    }
    Ok(Pair {
        host: host.index,
        host_mac: host.mac.unwrap_or_default(),
        net: other.index,
        net_mac: other.mac.unwrap_or_default(),
    })
}

/// `cilium_host`, made if it is missing; one without its other side is replaced.
fn make(net: &Netlink) -> Result<Link, NetError> {
    if let Some(host) = net.find_link(HOST)? {
        if net.find_link(NET)?.is_some() {
            return Ok(host);
        }
        net.delete_link(HOST)?;
    }
    net.add_link(LinkSpec::veth(HOST, LinkSpec::new().name(NET)))?;
    tracing::info!("Added interfaces cilium_host and cilium_net");
    let host = net.link(HOST)?;
    // Without IPv6 in the kernel there is nothing to turn off.
    if let Err(error) = net.set_link(&host, LinkSpec::new().no_link_local()) {
        tracing::debug!(
            error = hive::error_chain(&error),
            "cilium_host has a link-local address"
        );
    }
    Ok(host)
}

/// Makes `router` the only address of its family, but for link-local ones.
fn set_address(net: &Netlink, host: &Link, router: IpAddr) -> Result<(), NetError> {
    let is_link_local =
        |address: IpAddr| matches!(address, IpAddr::V6(address) if address.is_unicast_link_local());
    let there = net.addresses(host)?;
    if !there.iter().any(|there| there.address.addr() == router) {
        net.add_address(host, router.into())?;
    }
    for stale in there {
        let address = stale.address.addr();
        if address != router && address.is_ipv4() == router.is_ipv4() && !is_link_local(address) {
            net.delete_address(host, stale.address)?;
        }
    }
    Ok(())
}

fn route_to(index: u32, network: IpNet, plan: &PairPlan) -> Route {
    Route {
        device: Some(index),
        protocol: RouteProtocol::Kernel,
        metric: (plan.metric != 0).then_some(plan.metric),
        ..Route::to(network)
    }
}

/// Removes the routes to networks that are routed no more.
pub(crate) fn remove_routes(index: u32, networks: &[IpNet]) -> Result<(), NetError> {
    let net = Netlink::open()?;
    for network in networks {
        net.delete_route(&route_to(index, *network, &PairPlan::default()))?;
    }
    Ok(())
}
