// SPDX-License-Identifier: Apache-2.0

//! Routes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use netlink_packet_route::{
    AddressFamily, RouteNetlinkMessage,
    route::{
        RouteAddress, RouteAttribute, RouteFlags, RouteHeader, RouteMessage, RouteMetric, RouteNextHop,
        RouteProtocol, RouteScope, RouteType, RouteVia,
    },
};

use crate::{CREATE, EXCLUSIVE, NetError, Netlink, REPLACE, address::family};

/// A route to a network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    pub destination: IpNet,
    /// Index of the interface; none of a route with several next hops.
    pub device: Option<u32>,
    pub gateway: Option<IpAddr>,
    /// Next hops of a route with several of them.
    pub hops: Vec<Hop>,
    /// Preferred source.
    pub source: Option<IpAddr>,
    pub mtu: Option<u32>,
    pub metric: Option<u32>,
    pub table: u32,
    pub scope: RouteScope,
    pub protocol: RouteProtocol,
    pub kind: RouteType,
}

/// A next hop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hop {
    /// Index of the interface. The kernel looks up that of the gateway if there is none.
    pub device: Option<u32>,
    pub gateway: Option<IpAddr>,
}

/// The next hop of a route to an address of either family.
fn next_hop(is_ipv4: bool, gateway: IpAddr) -> RouteAttribute {
    match gateway {
        IpAddr::V4(gateway) if !is_ipv4 => RouteAttribute::Via(RouteVia::Inet(gateway)),
        IpAddr::V6(gateway) if is_ipv4 => RouteAttribute::Via(RouteVia::Inet6(gateway)),
        gateway => RouteAttribute::Gateway(gateway.into()),
    }
}

/// The address of a next hop.
fn gateway(attribute: &RouteAttribute) -> Option<IpAddr> {
    match attribute {
        RouteAttribute::Gateway(address) => ip(address),
        RouteAttribute::Via(RouteVia::Inet(address)) => Some((*address).into()),
        RouteAttribute::Via(RouteVia::Inet6(address)) => Some((*address).into()),
        _ => None,
    }
}

impl Route {
    /// A unicast route of the main table.
    pub fn to(destination: IpNet) -> Self {
        Self {
            destination,
            device: None,
            gateway: None,
            hops: Vec::new(),
            source: None,
            mtu: None,
            metric: None,
            table: RouteHeader::RT_TABLE_MAIN.into(),
            scope: RouteScope::Universe,
            protocol: RouteProtocol::Static,
            kind: RouteType::Unicast,
        }
    }

    /// The default route of a family.
    pub fn default_of(family: &IpAddr) -> Self {
        Self::to(match family {
            IpAddr::V4(_) => IpNet::new_assert(Ipv4Addr::UNSPECIFIED.into(), 0),
            IpAddr::V6(_) => IpNet::new_assert(Ipv6Addr::UNSPECIFIED.into(), 0),
        })
    }

    pub fn is_in_main_table(&self) -> bool {
        self.table == RouteHeader::RT_TABLE_MAIN.into()
    }

    fn message(&self) -> RouteMessage {
        let mut message = RouteMessage::default();
        let header = &mut message.header;
        header.address_family = family(self.destination.addr());
        header.destination_prefix_length = self.destination.prefix_len();
        header.scope = self.scope;
        header.protocol = self.protocol;
        header.kind = self.kind;
        let attributes = &mut message.attributes;
        match u8::try_from(self.table) {
            Ok(table) => header.table = table,
            Err(_) => attributes.push(RouteAttribute::Table(self.table)),
        }
        if self.destination.prefix_len() > 0 {
            attributes.push(RouteAttribute::Destination(self.destination.network().into()));
        }
        let is_ipv4 = self.destination.addr().is_ipv4();
        let gateway = self.gateway.map(|gateway| next_hop(is_ipv4, gateway));
        let source = self
            .source
            .map(|source| RouteAttribute::PrefSource(source.into()));
        let mtu = self
            .mtu
            .map(|mtu| RouteAttribute::Metrics(vec![RouteMetric::Mtu(mtu)]));
        attributes.extend(self.device.map(RouteAttribute::Oif));
        attributes.extend([gateway, source, mtu].into_iter().flatten());
        if !self.hops.is_empty() {
            let hops = self.hops.iter().map(|hop| {
                let mut message = RouteNextHop::default();
                message.interface_index = hop.device.unwrap_or_default();
                message
                    .attributes
                    .extend(hop.gateway.map(|gateway| next_hop(is_ipv4, gateway)));
                message
            });
            attributes.push(RouteAttribute::MultiPath(hops.collect()));
        }
        attributes.extend(self.metric.map(RouteAttribute::Priority));
        message
    }

    fn read(message: &RouteMessage) -> Option<Self> {
        let header = &message.header;
        let any = match header.address_family {
            AddressFamily::Inet => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            AddressFamily::Inet6 => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
            _ => return None,
        };
        let mut destination = any;
        let mut route = Self {
            table: header.table.into(),
            scope: header.scope,
            protocol: header.protocol,
            kind: header.kind,
            ..Self::default_of(&any)
        };
        for attribute in &message.attributes {
            match attribute {
                RouteAttribute::Destination(address) => destination = ip(address)?,
                RouteAttribute::Oif(index) => route.device = Some(*index),
                RouteAttribute::Gateway(_) | RouteAttribute::Via(_) => route.gateway = gateway(attribute),
                RouteAttribute::MultiPath(hops) => {
                    route.hops = hops
                        .iter()
                        .map(|hop| Hop {
                            device: Some(hop.interface_index),
                            gateway: hop.attributes.iter().find_map(gateway),
                        })
                        .collect();
                }
                RouteAttribute::PrefSource(address) => route.source = ip(address),
                RouteAttribute::Priority(metric) => route.metric = Some(*metric),
                RouteAttribute::Table(table) => route.table = *table,
                RouteAttribute::Metrics(metrics) => {
                    route.mtu = metrics.iter().find_map(|metric| match metric {
                        RouteMetric::Mtu(mtu) => Some(*mtu),
                        _ => None,
                    });
                }
                _ => {}
            }
        }
        route.destination = IpNet::new(destination, header.destination_prefix_length).ok()?;
        Some(route)
    }
}

fn ip(address: &RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(address) => Some((*address).into()),
        RouteAddress::Inet6(address) => Some((*address).into()),
        _ => None,
    }
}

/// The routes to list; what is `None` matches all.
#[derive(Debug, Clone, Copy, Default)]
pub struct RouteFilter {
    pub device: Option<u32>,
    pub table: Option<u8>,
    pub protocol: Option<RouteProtocol>,
    pub kind: Option<RouteType>,
}

impl RouteFilter {
    fn matches(&self, route: &Route) -> bool {
        self.device.is_none_or(|device| route.device == Some(device))
            && self.table.is_none_or(|table| route.table == table.into())
            && self.protocol.is_none_or(|protocol| route.protocol == protocol)
            && self.kind.is_none_or(|kind| route.kind == kind)
    }
}

impl Netlink {
    /// Lists routes of both families.
    pub fn routes(&self, filter: &RouteFilter) -> Result<Vec<Route>, NetError> {
        let mut found = Vec::new();
        for family in [AddressFamily::Inet, AddressFamily::Inet6] {
            let mut request = RouteMessage::default();
            request.header.address_family = family;
            request.header.table = filter.table.unwrap_or_default();
            request.header.protocol = filter.protocol.unwrap_or(RouteProtocol::Unspec);
            request.header.kind = filter.kind.unwrap_or(RouteType::Unspec);
            request.attributes.extend(filter.device.map(RouteAttribute::Oif));
            match self.list(RouteNetlinkMessage::GetRoute(request), "list routes") {
                Err(error) if error.is_gone() => {}
                listed => found.extend(
                    listed?
                        .iter()
                        .filter_map(route)
                        .filter(|route| filter.matches(route)),
                ),
            }
        }
        Ok(found)
    }

    /// Looks up how packets to an address are routed. Without a route this is an error of the kernel.
    pub fn route_to(&self, address: IpAddr) -> Result<Option<Route>, NetError> {
        self.look_up(address, RouteFlags::empty(), None)
    }

    /// Looks up the route by which packets to an address leave through an interface, as it is in the table.
    pub fn route_through(&self, address: IpAddr, device: u32) -> Result<Option<Route>, NetError> {
        self.look_up(address, RouteFlags::FibMatch, Some(device))
    }

    fn look_up(
        &self,
        address: IpAddr,
        flags: RouteFlags,
        device: Option<u32>,
    ) -> Result<Option<Route>, NetError> {
        let mut request = RouteMessage::default();
        request.header.address_family = family(address);
        request.header.destination_prefix_length = IpNet::from(address).prefix_len();
        request
            .attributes
            .push(RouteAttribute::Destination(address.into()));
        request.header.flags = flags;
        request.attributes.extend(device.map(RouteAttribute::Oif));
        let what = format_args!("look up the route to {address}");
        let answer = self.get(RouteNetlinkMessage::GetRoute(request), what)?;
        Ok(answer.as_ref().and_then(route))
    }

    /// Adds a route; one to the same network, of the same table and metric, is an error (`EEXIST`).
    pub fn add_route(&self, route: &Route) -> Result<(), NetError> {
        self.put_route(route, EXCLUSIVE)
    }

    /// Adds a route, or replaces one to the same network, of the same table and metric.
    pub fn replace_route(&self, route: &Route) -> Result<(), NetError> {
        self.put_route(route, REPLACE)
    }

    fn put_route(&self, route: &Route, flags: u16) -> Result<(), NetError> {
        let message = RouteNetlinkMessage::NewRoute(route.message());
        self.change(
            message,
            CREATE | flags,
            format_args!("add the route to {}", route.destination),
        )
    }

    /// Deletes a route. Returns false if it is gone already.
    pub fn delete_route(&self, route: &Route) -> Result<bool, NetError> {
        let message = RouteNetlinkMessage::DelRoute(route.message());
        match self.change(
            message,
            0,
            format_args!("delete the route to {}", route.destination),
        ) {
            Err(error) if error.is_gone() => Ok(false),
            done => done.map(|()| true),
        }
    }
}

fn route(message: &RouteNetlinkMessage) -> Option<Route> {
    match message {
        RouteNetlinkMessage::NewRoute(message) => Route::read(message),
        _ => None,
    }
}
