// SPDX-License-Identifier: Apache-2.0

//! `cilium_host` and `cilium_net`: the pair of interfaces that joins the node and its pods.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use futures::TryStreamExt as _;
use ipnet::IpNet;
use netlink_packet_route::{
    address::{AddressAttribute, AddressFlags, AddressMessage},
    link::{LinkAttribute, LinkFlags, LinkMessage},
    route::{RouteMessage, RouteProtocol, RouteScope},
};
use rtnetlink::{Handle, LinkMessageBuilder, LinkUnspec, LinkVeth, RouteMessageBuilder};
use skep_base_net::{NetError, connected, failed, find};
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

fn mac_of(link: &LinkMessage) -> [u8; 6] {
    let mac = link.attributes.iter().find_map(|attribute| match attribute {
        LinkAttribute::Address(bytes) => <[u8; 6]>::try_from(bytes.as_slice()).ok(),
        _ => None,
    });
    mac.unwrap_or_default()
}

/// Makes the pair, its addresses and routes, or changes what is different.
pub(crate) async fn ensure(plan: &PairPlan) -> Result<Pair, NetError> {
    connected(async |handle| {
        let host = make(handle).await?;
        let net = find(handle, NET).await?.ok_or(NetError::Removed(NET))?;
        for (name, link) in [(HOST, &host), (NET, &net)] {
            set_up(handle, name, link, plan.mtu).await?;
        }
        let index = host.header.index;
        for router in routers(plan) {
            set_address(handle, index, router).await?;
        }
        if let Some(router) = plan.router4 {
            set_router_route(handle, index, router, plan).await?;
        }
        for network in &plan.networks {
            set_route(handle, index, *network, plan).await?;
        }
        Ok(Pair {
            host: index,
            host_mac: mac_of(&host),
            net: net.header.index,
            net_mac: mac_of(&net),
        })
    })
    .await
}

fn routers(plan: &PairPlan) -> Vec<IpAddr> {
    let ipv4 = plan.router4.map(IpAddr::from);
    ipv4.into_iter().chain(plan.router6.map(IpAddr::from)).collect()
}

/// `cilium_host`, made if it is missing; one without its other side is replaced.
async fn make(handle: &Handle) -> Result<LinkMessage, NetError> {
    if let Some(host) = find(handle, HOST).await? {
        if find(handle, NET).await?.is_some() {
            return Ok(host);
        }
        let delete = handle.link().del(host.header.index).execute();
        delete
            .await
            .map_err(failed(format!("remove {HOST}, which has no {NET}")))?;
    }
    let pair = LinkVeth::new(HOST, NET).build();
    let add = handle.link().add(pair).execute();
    add.await.map_err(failed(format!("add {HOST} and {NET}")))?;
    tracing::info!("interfaces cilium_host and cilium_net added");
    find(handle, HOST).await?.ok_or(NetError::Removed(HOST))
}

async fn set_up(handle: &Handle, name: &str, link: &LinkMessage, mtu: u32) -> Result<(), NetError> {
    let has_mtu = link.attributes.contains(&LinkAttribute::Mtu(mtu));
    if has_mtu && link.header.flags.contains(LinkFlags::Up | LinkFlags::Noarp) {
        return Ok(());
    }
    let change = LinkMessageBuilder::<LinkUnspec>::default()
        .index(link.header.index)
        .mtu(mtu)
        // No host answers ARP for addresses of pods there: programs write the Ethernet header.
        .arp(false)
        .up();
    let set = handle.link().set(change.build()).execute();
    set.await.map_err(failed(format!("set {name} up with MTU {mtu}")))
}

fn address_of(message: &AddressMessage) -> Option<IpAddr> {
    message.attributes.iter().find_map(|attribute| match attribute {
        AddressAttribute::Address(address) => Some(*address),
        _ => None,
    })
}

fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(address) if address.is_unicast_link_local())
}

/// Makes `router` the only address of its family, but for link-local ones.
async fn set_address(handle: &Handle, index: u32, router: IpAddr) -> Result<(), NetError> {
    let bits = if router.is_ipv4() { 32 } else { 128 };
    let mut listed = handle.address().get().set_link_index_filter(index).execute();
    let (mut stale, mut is_there) = (Vec::new(), false);
    while let Some(message) = listed
        .try_next()
        .await
        .map_err(failed("list addresses of cilium_host"))?
    {
        match address_of(&message) {
            Some(address) if address == router => is_there = true,
            Some(address) if address.is_ipv4() == router.is_ipv4() && !is_link_local(address) => {
                stale.push((address, message));
            }
            _ => {}
        }
    }
    if !is_there {
        let mut add = handle.address().add(index, router, bits).replace();
        if router.is_ipv6() {
            // No other node has it: duplicate detection would only keep it from being the source of routes for a while.
            let flags = AddressAttribute::Flags(AddressFlags::Nodad);
            add.message_mut().attributes.push(flags);
        }
        let what = format!("add {router} to {HOST}");
        add.execute().await.map_err(failed(what))?;
    }
    for (address, message) in stale {
        let delete = handle.address().del(message).execute();
        delete
            .await
            .map_err(failed(format!("remove {address} from {HOST}")))?;
    }
    Ok(())
}

/// Routes the router's address to `cilium_host`: routes of this node's and of other nodes' pods have it as gateway.
async fn set_router_route(
    handle: &Handle,
    index: u32,
    router: Ipv4Addr,
    plan: &PairPlan,
) -> Result<(), NetError> {
    let route = RouteMessageBuilder::<Ipv4Addr>::new()
        .destination_prefix(router, 32)
        .output_interface(index)
        .scope(RouteScope::Link);
    let add = handle.route().add(with(route, plan.metric).build()).replace();
    let what = format!("route {router} to {HOST}");
    add.execute().await.map_err(failed(what))
}

/// Routes a network to `cilium_host`, by the router's address.
async fn set_route(handle: &Handle, index: u32, network: IpNet, plan: &PairPlan) -> Result<(), NetError> {
    let route: RouteMessage = match (network, plan.router4, plan.router6) {
        (IpNet::V4(network), Some(router), _) => {
            let route = RouteMessageBuilder::<Ipv4Addr>::new()
                .destination_prefix(network.network(), network.prefix_len())
                .gateway(router)
                .pref_source(router)
                .output_interface(index);
            with(route, plan.metric).build()
        }
        (IpNet::V6(network), _, Some(router)) => {
            let route = RouteMessageBuilder::<Ipv6Addr>::new()
                .destination_prefix(network.network(), network.prefix_len())
                .pref_source(router)
                .output_interface(index);
            with(route, plan.metric).build()
        }
        // Without a router there are no pods of this family.
        _ => return Ok(()),
    };
    let add = handle.route().add(route).replace();
    let what = format!("route {network} to {HOST}");
    add.execute().await.map_err(failed(what))
}

fn with<T>(route: RouteMessageBuilder<T>, metric: u32) -> RouteMessageBuilder<T> {
    let route = route.protocol(RouteProtocol::Kernel);
    if metric == 0 {
        route
    } else {
        route.priority(metric)
    }
}

/// Removes the routes to networks that are routed no more.
pub(crate) async fn remove_routes(index: u32, networks: &[IpNet]) -> Result<(), NetError> {
    connected(async |handle| {
        for network in networks {
            let message = match network {
                IpNet::V4(network) => RouteMessageBuilder::<Ipv4Addr>::new()
                    .destination_prefix(network.network(), network.prefix_len())
                    .output_interface(index)
                    .protocol(RouteProtocol::Kernel)
                    .build(),
                IpNet::V6(network) => RouteMessageBuilder::<Ipv6Addr>::new()
                    .destination_prefix(network.network(), network.prefix_len())
                    .output_interface(index)
                    .protocol(RouteProtocol::Kernel)
                    .build(),
            };
            match handle.route().del(message).execute().await {
                Err(rtnetlink::Error::NetlinkError(answer)) if answer.raw_code() == -libc::ESRCH => {}
                done => done.map_err(failed(format!("remove the route of {network} to {HOST}")))?,
            }
        }
        Ok(())
    })
    .await
}
