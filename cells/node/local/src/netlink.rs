// SPDX-License-Identifier: Apache-2.0

//! The kernel as a [`DeviceSource`].

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use futures::StreamExt;
use futures::stream::BoxStream;
use ipnet::IpNet;
use netlink_packet_route::address::{AddressAttribute, AddressFlags, AddressMessage};
use netlink_packet_route::link::{InfoData, InfoVlan, LinkAttribute, LinkInfo, LinkMessage, Prop, State};
use netlink_packet_route::neighbour::NeighbourMessage;
use netlink_packet_route::route::{RouteAddress, RouteAttribute, RouteFlags, RouteMessage, RouteMetric};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use rtnetlink::packet_core::{NLM_F_REPLACE, NetlinkPayload};
use rtnetlink::sys::{AsyncSocket, SocketAddr};
use rtnetlink::{Handle, RouteMessageBuilder};

use crate::device::{AddressState, DeviceAddress, HardwareAddr, Vlan};
use crate::neighbor::Neighbor;
use crate::route::Route;
use crate::source::{DeviceEvent, DeviceEvents, DeviceSource, Link, LinkAddress, SourceError};

/// `RTNLGRP_LINK`, `_NEIGH`, `_IPV4_IFADDR`, `_IPV4_ROUTE`, `_IPV6_IFADDR`, `_IPV6_ROUTE` as bits.
const GROUPS: u32 = 1 << 0 | 1 << 2 | 1 << 4 | 1 << 6 | 1 << 8 | 1 << 10;

/// Receive buffer in bytes: enough for the events of some thousand devices that appear at once.
const BUFFER: usize = 4 << 20;

/// Devices of the network namespace in which the events are first polled.
#[derive(Debug, Clone, Copy, Default)]
pub struct Netlink;

impl DeviceSource for Netlink {
    fn events(&self) -> DeviceEvents {
        Box::pin(async_stream::try_stream! {
            let (mut connection, _handle, mut news) = rtnetlink::new_connection()?;
            // Notifications have the sequence number of their cause, and would be taken for the answer to a request.
            let (lister, handle, _) = rtnetlink::new_connection()?;
            let socket = connection.socket_mut().socket_mut();
            if let Err(error) = socket.set_rx_buf_sz(i32::try_from(BUFFER).unwrap_or(i32::MAX)) {
                tracing::debug!(%error, "Cannot set netlink buffer size, using the default");
            }
            // Groups are joined before the first list, so that no change is missed.
            socket.bind(&SocketAddr::new(0, GROUPS))?;
            tokio::pin!(connection, lister);
            let mut dump = Some(list_all(&handle));
            loop {
                let next = tokio::select! {
                    biased;
                    () = &mut connection => None,
                    () = &mut lister => None,
                    listed = async { match &mut dump { Some(dump) => dump.next().await, None => std::future::pending().await } } => {
                        match listed {
                            Some(event) => yield event?,
                            None => {
                                dump = None;
                                yield DeviceEvent::Synced;
                            }
                        }
                        continue;
                    }
                    // Events are held back until the list is complete: they are newer.
                    message = news.next(), if dump.is_none() => message,
                };
                let Some((message, _)) = next else { Err(SourceError::Ended)? };
                let replaces = message.header.flags & NLM_F_REPLACE != 0;
                match message.payload {
                    NetlinkPayload::InnerMessage(message) => {
                        if let Some(event) = read_message(message, replaces) {
                            yield event;
                        }
                    }
                    NetlinkPayload::Overrun(_) => {
                        yield DeviceEvent::Restart;
                        dump = Some(list_all(&handle));
                    }
                    _ => {}
                }
            }
        })
    }
}

/// Lists all devices, addresses, routes and neighbours.
fn list_all(handle: &Handle) -> BoxStream<'static, Result<DeviceEvent, SourceError>> {
    let handle = handle.clone();
    Box::pin(async_stream::try_stream! {
        let fail = |what| move |cause| SourceError::List { what, cause };
        let mut links = Box::pin(handle.link().get().execute());
        while let Some(link) = links.next().await {
            yield DeviceEvent::Link(read_link(link.map_err(fail("devices"))?));
        }
        let mut addresses = Box::pin(handle.address().get().execute());
        while let Some(message) = addresses.next().await {
            if let Some((index, address)) = read_address(&message.map_err(fail("addresses"))?) {
                yield DeviceEvent::Address(index, address);
            }
        }
        let families = [
            RouteMessageBuilder::<Ipv4Addr>::new().build(),
            RouteMessageBuilder::<Ipv6Addr>::new().build(),
        ];
        for family in families {
            let mut routes = Box::pin(handle.route().get(family).execute());
            while let Some(message) = routes.next().await {
                if let Some(route) = read_route(&message.map_err(fail("routes"))?) {
                    yield DeviceEvent::Route(route);
                }
            }
        }
        let mut neighbors = Box::pin(handle.neighbours().get().execute());
        while let Some(message) = neighbors.next().await {
            if let Some(event) = read_neighbor(&message.map_err(fail("neighbours"))?) {
                yield event;
            }
        }
    })
}

/// Reads a message; `replaces`: it replaces others.
fn read_message(message: RouteNetlinkMessage, replaces: bool) -> Option<DeviceEvent> {
    match message {
        // Bridges report their ports in the same group, without the attributes of the device, and as deleted when one
        // has only left the bridge.
        RouteNetlinkMessage::NewLink(link) | RouteNetlinkMessage::DelLink(link)
            if link.header.interface_family == AddressFamily::Bridge =>
        {
            None
        }
        RouteNetlinkMessage::NewLink(link) | RouteNetlinkMessage::NewLinkProp(link) => {
            Some(DeviceEvent::Link(read_link(link)))
        }
        RouteNetlinkMessage::DelLink(link) => Some(DeviceEvent::LinkGone(link.header.index)),
        RouteNetlinkMessage::NewAddress(message) => {
            read_address(&message).map(|(index, address)| DeviceEvent::Address(index, address))
        }
        RouteNetlinkMessage::DelAddress(message) => {
            read_address(&message).map(|(index, address)| DeviceEvent::AddressGone(index, address))
        }
        RouteNetlinkMessage::NewRoute(message) => read_route(&message).map(match replaces {
            true => DeviceEvent::RouteReplaced,
            false => DeviceEvent::Route,
        }),
        RouteNetlinkMessage::DelRoute(message) => {
            read_route(&message).map(|route| DeviceEvent::RouteGone(route.key()))
        }
        RouteNetlinkMessage::NewNeighbour(message) => read_neighbor(&message),
        RouteNetlinkMessage::DelNeighbour(message) => {
            let neighbour = skep_base_net::Neighbour::read(&message)?;
            Some(DeviceEvent::NeighborGone(neighbor(neighbour).key()))
        }
        _ => None,
    }
}

/// Reads a neighbour. Those of interfaces without neighbour discovery are none.
fn read_neighbor(message: &NeighbourMessage) -> Option<DeviceEvent> {
    let neighbor = neighbor(skep_base_net::Neighbour::read(message)?);
    match neighbor.state & Neighbor::NOARP {
        0 => Some(DeviceEvent::Neighbor(neighbor)),
        _ => Some(DeviceEvent::NeighborGone(neighbor.key())),
    }
}

fn neighbor(neighbour: skep_base_net::Neighbour) -> Neighbor {
    Neighbor {
        link_index: neighbour.device,
        ip: neighbour.address,
        hardware_addr: HardwareAddr(neighbour.mac.unwrap_or_default().into_boxed_slice()),
        kind: neighbour.kind.into(),
        state: neighbour.state.into(),
        flags: neighbour.flags.bits(),
        ext_flags: neighbour.ext_flags.bits(),
    }
}

fn read_link(message: LinkMessage) -> Link {
    let mut link = Link {
        index: message.header.index,
        raw_flags: message.header.flags.bits(),
        kind: "device".to_owned(),
        oper_status: "unknown",
        ..Link::default()
    };
    let (mut below, mut vlan_id, mut is_here) = (None, None, true);
    for attribute in message.attributes {
        match attribute {
            LinkAttribute::IfName(name) => link.name = name,
            LinkAttribute::Mtu(mtu) => link.mtu = mtu,
            // The loopback device has an address of zeros.
            LinkAttribute::Address(address) if address.iter().any(|byte| *byte != 0) => {
                link.hardware_addr = address.into_boxed_slice();
            }
            LinkAttribute::Controller(index) => link.master_index = index,
            LinkAttribute::Link(index) => below = Some(index),
            // The device below is in another network namespace.
            LinkAttribute::LinkNetNsId(_) => is_here = false,
            LinkAttribute::OperState(state) => link.oper_status = status_text(state),
            LinkAttribute::PropList(properties) => {
                link.alt_names
                    .extend(properties.into_iter().filter_map(|property| match property {
                        Prop::AltIfName(name) => Some(name),
                        _ => None,
                    }));
            }
            LinkAttribute::LinkInfo(infos) => {
                for info in infos {
                    match info {
                        LinkInfo::Kind(kind) => link.kind = kind.to_string(),
                        LinkInfo::Data(InfoData::Vlan(data)) => {
                            vlan_id = data.iter().find_map(|info| match info {
                                InfoVlan::Id(id) => Some(*id),
                                _ => None,
                            });
                        }
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    if is_here {
        link.vlan = below.zip(vlan_id).map(|(device, id)| Vlan { device, id });
    }
    link
}

fn status_text(state: State) -> &'static str {
    match state {
        State::NotPresent => "not-present",
        State::Down => "down",
        State::LowerLayerDown => "lower-layer-down",
        State::Testing => "testing",
        State::Dormant => "dormant",
        State::Up => "up",
        _ => "unknown",
    }
}

fn read_address(message: &AddressMessage) -> Option<(u32, LinkAddress)> {
    let (mut peer, mut local) = (None, None);
    // Those of the header are the lowest eight; the attribute has all.
    let mut flags = AddressFlags::from_bits_retain(message.header.flags.bits().into());
    for attribute in &message.attributes {
        match attribute {
            AddressAttribute::Address(addr) => peer = Some(*addr),
            // On a point-to-point device the other one is the peer's.
            AddressAttribute::Local(addr) => local = Some(*addr),
            AddressAttribute::Flags(all) => flags |= *all,
            _ => {}
        }
    }
    let addr = local.or(peer)?;
    let own = DeviceAddress {
        addr,
        secondary: flags.contains(AddressFlags::Secondary),
        scope: message.header.scope.into(),
        state: state(flags),
    };
    let network = IpNet::new(peer.unwrap_or(addr), message.header.prefix_len).ok()?;
    Some((message.header.index, LinkAddress { own, network }))
}

/// The state that flags say. An optimistic address is in use as a deprecated one while duplicates of it are searched
/// (RFC 4429).
fn state(flags: AddressFlags) -> AddressState {
    let is_optimistic = flags.contains(AddressFlags::Optimistic);
    if flags.contains(AddressFlags::Dadfailed) {
        AddressState::Duplicate
    } else if flags.contains(AddressFlags::Tentative) && !is_optimistic {
        AddressState::Tentative
    } else if flags.intersects(AddressFlags::Tentative | AddressFlags::Deprecated) {
        AddressState::Deprecated
    } else {
        AddressState::Preferred
    }
}

/// Reads a route; `None` for other families and for copies in caches.
fn read_route(message: &RouteMessage) -> Option<Route> {
    let header = &message.header;
    if header.flags.contains(RouteFlags::Cloned) {
        return None;
    }
    let mut dst = match header.address_family {
        AddressFamily::Inet => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        AddressFamily::Inet6 => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        _ => return None,
    };
    let mut route = Route {
        table: header.table.into(),
        kind: header.kind.into(),
        scope: header.scope.into(),
        ..Route::default()
    };
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Table(number) => route.table = *number,
            RouteAttribute::Priority(number) => route.priority = *number,
            RouteAttribute::Oif(index) => route.link_index = *index,
            RouteAttribute::MultiPath(hops) => {
                route.hops = hops.iter().map(|hop| hop.interface_index).collect();
            }
            RouteAttribute::Destination(address) => dst = ip(address)?,
            RouteAttribute::PrefSource(address) => route.src = ip(address),
            RouteAttribute::Gateway(address) => route.gw = ip(address),
            RouteAttribute::Metrics(metrics) => {
                let mtu = metrics.iter().find_map(|metric| match metric {
                    RouteMetric::Mtu(mtu) => Some(*mtu),
                    _ => None,
                });
                route.mtu = mtu.unwrap_or_default();
            }
            _ => {}
        }
    }
    route.dst = IpNet::new(dst, header.destination_prefix_length).ok()?;
    Some(route)
}

fn ip(address: &RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(addr) => Some(IpAddr::V4(*addr)),
        RouteAddress::Inet6(addr) => Some(IpAddr::V6(*addr)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use netlink_packet_route::address::AddressHeaderFlags;
    use netlink_packet_route::link::InfoKind;

    use super::*;

    fn vlan(others: impl IntoIterator<Item = LinkAttribute>) -> LinkMessage {
        let mut message = LinkMessage::default();
        message.header.index = 8;
        message.attributes = vec![
            LinkAttribute::IfName("eth0.10".to_owned()),
            LinkAttribute::Link(2),
            LinkAttribute::LinkInfo(vec![
                LinkInfo::Kind(InfoKind::Vlan),
                LinkInfo::Data(InfoData::Vlan(vec![InfoVlan::Id(10)])),
            ]),
        ];
        message.attributes.extend(others);
        message
    }

    #[test]
    fn interfaces_of_vlans_have_the_device_that_carries_them() {
        let link = read_link(vlan([]));
        assert_eq!((link.index, &*link.kind), (8, "vlan"));
        assert_eq!(link.vlan, Some(Vlan { device: 2, id: 10 }));

        // An index of another network namespace.
        assert_eq!(read_link(vlan([LinkAttribute::LinkNetNsId(0)])).vlan, None);
    }

    #[test]
    fn states_of_addresses_are_in_their_flags() {
        use AddressFlags as F;
        for (flags, expected) in [
            (F::Permanent | F::Secondary, AddressState::Preferred),
            (F::Deprecated | F::Permanent, AddressState::Deprecated),
            (F::Tentative, AddressState::Tentative),
            (F::Tentative | F::Deprecated, AddressState::Tentative),
            (F::Tentative | F::Optimistic, AddressState::Deprecated),
            (F::Tentative | F::Dadfailed, AddressState::Duplicate),
        ] {
            assert_eq!(state(flags), expected, "{flags:?}");
        }
    }

    #[test]
    fn flags_are_read_from_the_header_and_the_attribute() {
        let mut message = AddressMessage::default();
        message.header.prefix_len = 32;
        message.header.flags = AddressHeaderFlags::Deprecated;
        let [own, peer] = ["192.0.2.7", "192.0.2.9"].map(|text| text.parse().unwrap());
        message.attributes = vec![AddressAttribute::Address(peer), AddressAttribute::Local(own)];
        let (_, address) = read_address(&message).unwrap();
        assert_eq!(address.own.state, AddressState::Deprecated);
        assert_eq!(address.key(), (own, "192.0.2.9/32".parse().unwrap()));

        let tentative = AddressAttribute::Flags(AddressFlags::Tentative);
        message.attributes.push(tentative);
        assert_eq!(
            read_address(&message).unwrap().1.own.state,
            AddressState::Tentative
        );
    }

    #[test]
    fn other_interfaces_above_a_device_are_none() {
        let mut message = LinkMessage::default();
        message.attributes = vec![
            LinkAttribute::Link(2),
            LinkAttribute::LinkInfo(vec![LinkInfo::Kind(InfoKind::MacVlan)]),
        ];
        assert_eq!(read_link(message).vlan, None);
    }
}
