// SPDX-License-Identifier: Apache-2.0

//! Routes to single addresses, in the main table: by an interface, those to endpoints; `unreachable`, those to endpoints that
//! are gone.

use std::{collections::BTreeSet, net::IpAddr};

use ipnet::IpNet;
use netlink_packet_route::route::{RouteHeader, RouteProtocol, RouteScope, RouteType};

use crate::{NetError, Netlink, Route, RouteFilter};

/// As Cilium's: systemd-networkd removes what it does not know of other protocols.
const PROTOCOL: RouteProtocol = RouteProtocol::Kernel;
/// Index of the loopback interface, which IPv6 has unreachable routes by.
const LOOPBACK: u32 = 1;

/// Routes these addresses, each alone, to an interface, and removes such routes of the same interface to others. Routes
/// with a gateway, a source or another protocol than the kernel's are not ours and stay. Returns
/// whether something changed; what was done before an error stays done.
pub fn set(ifindex: u32, wanted: &[IpAddr]) -> Result<bool, NetError> {
    let net = Netlink::open()?;
    let present = list_on(&net, ifindex)?;
    let mut has_changed = false;
    for address in wanted.iter().filter(|address| !present.contains(address)) {
        net.replace_route(&host(ifindex, *address))?;
        has_changed = true;
    }
    for address in present.into_iter().filter(|address| !wanted.contains(address)) {
        net.delete_route(&host(ifindex, address))?;
        has_changed = true;
    }
    Ok(has_changed)
}

/// Addresses that [`set`] has routed to an interface.
pub fn list(ifindex: u32) -> Result<BTreeSet<IpAddr>, NetError> {
    list_on(&Netlink::open()?, ifindex)
}

fn list_on(net: &Netlink, ifindex: u32) -> Result<BTreeSet<IpAddr>, NetError> {
    let routes = net.routes(&filter(RouteType::Unicast, Some(ifindex)))?;
    let ours = routes
        .iter()
        .filter(|route| route.gateway.is_none() && route.source.is_none());
    Ok(ours.filter_map(address).collect())
}

fn filter(kind: RouteType, device: Option<u32>) -> RouteFilter {
    RouteFilter {
        device,
        table: Some(RouteHeader::RT_TABLE_MAIN),
        protocol: Some(PROTOCOL),
        kind: Some(kind),
    }
}

fn address(route: &Route) -> Option<IpAddr> {
    let network = route.destination;
    (network.prefix_len() == network.max_prefix_len()).then(|| network.addr())
}

/// A route to an address by an interface.
fn host(ifindex: u32, address: IpAddr) -> Route {
    Route {
        device: Some(ifindex),
        // IPv6 has no scopes of routes.
        scope: if address.is_ipv4() {
            RouteScope::Link
        } else {
            RouteScope::Universe
        },
        protocol: PROTOCOL,
        ..Route::to(IpNet::from(address))
    }
}

fn unreachable(address: IpAddr) -> Route {
    Route {
        // The kernel does not compare the type when it removes a route of IPv6.
        device: address.is_ipv6().then_some(LOOPBACK),
        protocol: PROTOCOL,
        kind: RouteType::Unreachable,
        ..Route::to(IpNet::from(address))
    }
}

/// Adds an unreachable route to an address: the kernel answers packets to it with an ICMP error. A route to this address
/// alone that is there stays as it is. Returns whether a route was added.
pub fn add_unreachable(address: IpAddr) -> Result<bool, NetError> {
    match Netlink::open()?.add_route(&unreachable(address)) {
        Err(error) if error.errno() == Some(libc::EEXIST) => Ok(false),
        done => done.map(|()| true),
    }
}

/// Removes what [`add_unreachable`] added; returns whether it was there.
pub fn remove_unreachable(address: IpAddr) -> Result<bool, NetError> {
    Netlink::open()?.delete_route(&unreachable(address))
}

/// Addresses with a route of [`add_unreachable`], of this process or an earlier one.
pub fn unreachable_addresses() -> Result<BTreeSet<IpAddr>, NetError> {
    let routes = Netlink::open()?.routes(&filter(RouteType::Unreachable, None))?;
    Ok(routes.iter().filter_map(address).collect())
}
