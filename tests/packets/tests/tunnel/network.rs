// SPDX-License-Identifier: Apache-2.0

//! Interfaces, addresses and routes of the network namespace of the calling thread.

use std::{
    fs,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    os::fd::AsRawFd as _,
    path::Path,
};

use rtnetlink::{
    Handle, LinkUnspec, LinkVeth, LinkVxlan, RouteMessageBuilder,
    packet_route::{
        address::AddressHeaderFlags,
        link::LinkAttribute,
        route::{RouteAddress, RouteAttribute, RouteMessage, RouteMetric},
        rule::RuleAction,
    },
};

#[track_caller]
fn netlink<T>(work: impl AsyncFnOnce(&Handle) -> Result<T, rtnetlink::Error>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let (connection, handle, _) = rtnetlink::new_connection().unwrap();
        let connection = tokio::spawn(connection);
        let result = work(&handle).await;
        connection.abort();
        result.unwrap()
    })
}

/// Writes a setting below `/proc/sys/net`.
#[track_caller]
pub(crate) fn set(setting: &str, value: &str) {
    fs::write(format!("/proc/sys/net/{setting}"), value).unwrap_or_else(|error| panic!("{setting}: {error}"));
}

pub(crate) fn pair(one: &str, other: &str) {
    netlink(async |handle| {
        handle
            .link()
            .add(LinkVeth::new(one, other).build())
            .execute()
            .await
    });
}

/// Moves an interface to another namespace.
pub(crate) fn give(interface: &str, namespace: &Path) {
    let namespace = fs::File::open(namespace).unwrap();
    let message = LinkUnspec::new_with_name(interface).setns_by_fd(namespace.as_raw_fd());
    netlink(async |handle| handle.link().set(message.build()).execute().await);
}

/// Makes the interface of a VXLAN tunnel whose programs say where packets go.
pub(crate) fn vxlan(interface: &str, port: u16) {
    let message = LinkVxlan::new(interface, 0)
        .port(port)
        .collect_metadata(true)
        .learning(false);
    netlink(async |handle| handle.link().add(message.build()).execute().await);
}

/// Lets an interface ask for no neighbours: all are at its own MAC address.
pub(crate) fn without_neighbours(interface: &str) {
    let message = LinkUnspec::new_with_name(interface).arp(false).build();
    netlink(async |handle| handle.link().set(message).execute().await);
}

/// Brings an interface up, and returns its index and MAC address.
pub(crate) fn up(interface: &str) -> (u32, [u8; 6]) {
    let message = LinkUnspec::new_with_name(interface).up().build();
    netlink(async |handle| handle.link().set(message).execute().await);
    link(interface)
}

/// Index and MAC address of an interface.
pub(crate) fn link(interface: &str) -> (u32, [u8; 6]) {
    use futures::TryStreamExt as _;

    let found = netlink(async |handle| {
        let mut links = handle.link().get().match_name(interface.to_owned()).execute();
        links.try_next().await
    });
    let found = found.unwrap();
    let mac = found.attributes.iter().find_map(|attribute| match attribute {
        LinkAttribute::Address(mac) => mac.as_slice().try_into().ok(),
        _ => None,
    });
    (found.header.index, mac.unwrap_or_default())
}

pub(crate) fn add_address(interface: u32, address: IpAddr, bits: u8) {
    netlink(async |handle| {
        let mut add = handle.address().add(interface, address, bits);
        // Usable at once.
        add.message_mut().header.flags |= AddressHeaderFlags::Nodad;
        add.execute().await
    });
}

/// Adds a permanent neighbour entry, so that there is no neighbour discovery.
pub(crate) fn add_neighbour(interface: u32, address: IpAddr, mac: [u8; 6]) {
    netlink(async |handle| {
        let neighbour = handle.neighbours().add(interface, address);
        neighbour.link_layer_address(&mac).execute().await
    });
}

/// Adds a route, with the largest packets that go by it.
pub(crate) fn add_route(
    interface: u32,
    network: IpAddr,
    bits: u8,
    gateway: Option<IpAddr>,
    mtu: Option<u32>,
) {
    let mtu = mtu.map(|mtu| RouteAttribute::Metrics(vec![RouteMetric::Mtu(mtu)]));
    add_route_with(interface, (network, bits), gateway, mtu);
}

/// Largest packets of a route, which are not asked of the interface, nor found out.
pub(crate) fn fixed_mtu(mtu: u32) -> RouteAttribute {
    /// `RTAX_MTU`
    const MTU: u32 = 2;
    RouteAttribute::Metrics(vec![RouteMetric::Mtu(mtu), RouteMetric::Lock(1 << MTU)])
}

/// Source of packets of this node on a route.
pub(crate) fn from(address: IpAddr) -> RouteAttribute {
    RouteAttribute::PrefSource(match address {
        IpAddr::V4(address) => RouteAddress::Inet(address),
        IpAddr::V6(address) => RouteAddress::Inet6(address),
    })
}

/// The table that a route is in.
pub(crate) fn in_table(table: u32) -> RouteAttribute {
    RouteAttribute::Table(table)
}

/// Adds a route with these attributes.
pub(crate) fn add_route_with(
    interface: u32,
    (network, bits): (IpAddr, u8),
    gateway: Option<IpAddr>,
    attributes: impl IntoIterator<Item = RouteAttribute>,
) {
    let mut message: RouteMessage = match (network, gateway) {
        (IpAddr::V4(network), gateway) => {
            let mut route = RouteMessageBuilder::<Ipv4Addr>::new().destination_prefix(network, bits);
            if let Some(IpAddr::V4(gateway)) = gateway {
                route = route.gateway(gateway).onlink();
            }
            route.output_interface(interface).build()
        }
        (IpAddr::V6(network), gateway) => {
            let mut route = RouteMessageBuilder::<Ipv6Addr>::new().destination_prefix(network, bits);
            if let Some(IpAddr::V6(gateway)) = gateway {
                route = route.gateway(gateway).onlink();
            }
            route.output_interface(interface).build()
        }
    };
    message.attributes.extend(attributes);
    netlink(async |handle| handle.route().add(message).execute().await);
}

/// Routes packets from an address by a table.
pub(crate) fn add_rule(source: IpAddr, table: u32) {
    netlink(async |handle| {
        let rule = handle.rule().add().table_id(table).action(RuleAction::ToTable);
        match source {
            IpAddr::V4(source) => rule.v4().source_prefix(source, 32).execute().await,
            IpAddr::V6(source) => rule.v6().source_prefix(source, 128).execute().await,
        }
    });
}
