// SPDX-License-Identifier: Apache-2.0

//! Routes to single addresses, in the main table: by an interface, those to endpoints; `unreachable`, those to endpoints that
//! are gone.

use std::{
    collections::BTreeSet,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use crate::netlink::{self, Body, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE};

const RTM_NEWROUTE: u16 = 24;
const RTM_DELROUTE: u16 = 25;
const RTM_GETROUTE: u16 = 26;
const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RTA_PREFSRC: u16 = 7;
/// `struct rtmsg`
const RTMSG: usize = 12;
/// `RT_TABLE_MAIN`
const MAIN: u8 = 254;
/// `RTPROT_KERNEL`, as Cilium's: systemd-networkd removes what it does not know of other protocols.
const PROTOCOL: u8 = 2;
/// `RTN_UNICAST`
const UNICAST: u8 = 1;
/// `RTN_UNREACHABLE`
const UNREACHABLE: u8 = 7;
/// `RT_SCOPE_LINK`: the host is on the link.
const ON_LINK: u8 = 253;
/// Index of the loopback interface, which IPv6 has unreachable routes by.
const LOOPBACK: u32 = 1;

/// Why routes of an interface are not as they should be.
#[derive(Debug, thiserror::Error)]
pub enum RouteError {
    #[error("routes by interface {ifindex} cannot be listed")]
    List {
        ifindex: u32,
        #[source]
        source: io::Error,
    },
    /// The route was not added. With `ENODEV` the interface is gone.
    #[error("no route to {address} by interface {ifindex}")]
    Add {
        address: IpAddr,
        ifindex: u32,
        #[source]
        source: io::Error,
    },
    #[error("the route to {address} by interface {ifindex} cannot be removed")]
    Remove {
        address: IpAddr,
        ifindex: u32,
        #[source]
        source: io::Error,
    },
    #[error("unreachable routes cannot be listed")]
    ListUnreachable {
        #[source]
        source: io::Error,
    },
    /// The unreachable route was not added.
    #[error("no unreachable route to {address}")]
    AddUnreachable {
        address: IpAddr,
        #[source]
        source: io::Error,
    },
    /// The unreachable route was not removed: packets to the address get an ICMP error.
    #[error("the unreachable route to {address} cannot be removed")]
    RemoveUnreachable {
        address: IpAddr,
        #[source]
        source: io::Error,
    },
}

/// Routes these addresses, each alone, to an interface, and removes such routes of the same interface to others. Routes
/// with a gateway, a source or another protocol than the kernel's are not ours and stay. Returns
/// whether something changed.
///
/// # Errors
///
/// [`RouteError`]; what was done before stays done.
pub fn set_host_routes(ifindex: u32, wanted: &[IpAddr]) -> Result<bool, RouteError> {
    let present = host_routes(ifindex)?;
    let mut has_changed = false;
    for address in wanted.iter().filter(|address| !present.contains(address)) {
        netlink::request(
            RTM_NEWROUTE,
            NLM_F_CREATE | NLM_F_REPLACE,
            &message(ifindex, *address),
        )
        .map_err(|source| RouteError::Add {
            address: *address,
            ifindex,
            source,
        })?;
        has_changed = true;
    }
    for address in present.into_iter().filter(|address| !wanted.contains(address)) {
        match netlink::request(RTM_DELROUTE, 0, &message(ifindex, address)) {
            Err(error) if is_gone(&error) => {}
            done => done.map_err(|source| RouteError::Remove {
                address,
                ifindex,
                source,
            })?,
        }
        has_changed = true;
    }
    Ok(has_changed)
}

/// Addresses that [`set_host_routes`] has routed to an interface.
///
/// # Errors
///
/// [`RouteError::List`].
pub fn host_routes(ifindex: u32) -> Result<BTreeSet<IpAddr>, RouteError> {
    let mut found = BTreeSet::new();
    for family in [libc::AF_INET, libc::AF_INET6] {
        let body = Body::new(&structure(family, 0, 0, UNICAST)).attribute(RTA_OIF, &ifindex.to_ne_bytes());
        let listed = netlink::dump_filtered(RTM_GETROUTE, &body, |kind, route| {
            if kind == RTM_NEWROUTE {
                found.extend(read(route, ifindex));
            }
        });
        match listed {
            Err(error) if is_gone(&error) => {}
            listed => listed.map_err(|source| RouteError::List { ifindex, source })?,
        }
    }
    Ok(found)
}

/// The interface, the route, the table or the address family is not there.
fn is_gone(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::ENODEV | libc::ESRCH | libc::ENOENT | libc::EAFNOSUPPORT | libc::EOPNOTSUPP)
    )
}

/// `struct rtmsg`
fn structure(family: i32, bits: u8, scope: u8, kind: u8) -> [u8; RTMSG] {
    [family as u8, bits, 0, 0, MAIN, PROTOCOL, scope, kind, 0, 0, 0, 0]
}

/// Address family and bytes of an address.
fn octets(address: IpAddr) -> (i32, Vec<u8>) {
    match address {
        IpAddr::V4(address) => (libc::AF_INET, address.octets().to_vec()),
        IpAddr::V6(address) => (libc::AF_INET6, address.octets().to_vec()),
    }
}

/// A route to an address by an interface.
fn message(ifindex: u32, address: IpAddr) -> Body {
    let (family, octets) = octets(address);
    // IPv6 has no scopes of routes.
    let scope = if address.is_ipv4() { ON_LINK } else { 0 };
    Body::new(&structure(family, 8 * octets.len() as u8, scope, UNICAST))
        .attribute(RTA_DST, &octets)
        .attribute(RTA_OIF, &ifindex.to_ne_bytes())
}

/// The unreachable route to an address.
fn unreachable_message(address: IpAddr) -> Body {
    let (family, octets) = octets(address);
    let body =
        Body::new(&structure(family, 8 * octets.len() as u8, 0, UNREACHABLE)).attribute(RTA_DST, &octets);
    match address {
        IpAddr::V4(_) => body,
        // The kernel does not compare the type when it removes a route of IPv6.
        IpAddr::V6(_) => body.attribute(RTA_OIF, &LOOPBACK.to_ne_bytes()),
    }
}

/// Adds an unreachable route to an address: the kernel answers packets to it with an ICMP error. A route to this address
/// alone that is there stays as it is. Returns whether a route was added.
///
/// # Errors
///
/// [`RouteError::AddUnreachable`]
pub fn add_unreachable(address: IpAddr) -> Result<bool, RouteError> {
    let flags = NLM_F_CREATE | NLM_F_EXCL;
    match netlink::request(RTM_NEWROUTE, flags, &unreachable_message(address)) {
        Err(error) if error.raw_os_error() == Some(libc::EEXIST) => Ok(false),
        done => done
            .map(|()| true)
            .map_err(|source| RouteError::AddUnreachable { address, source }),
    }
}

/// Removes what [`add_unreachable`] added; returns whether it was there.
///
/// # Errors
///
/// [`RouteError::RemoveUnreachable`]
pub fn remove_unreachable(address: IpAddr) -> Result<bool, RouteError> {
    match netlink::request(RTM_DELROUTE, 0, &unreachable_message(address)) {
        Err(error) if is_gone(&error) => Ok(false),
        done => done
            .map(|()| true)
            .map_err(|source| RouteError::RemoveUnreachable { address, source }),
    }
}

/// Addresses with a route of [`add_unreachable`], of this process or an earlier one.
///
/// # Errors
///
/// [`RouteError::ListUnreachable`]
pub fn unreachable_addresses() -> Result<BTreeSet<IpAddr>, RouteError> {
    let mut found = BTreeSet::new();
    for family in [libc::AF_INET, libc::AF_INET6] {
        let body = Body::new(&structure(family, 0, 0, UNREACHABLE));
        let listed = netlink::dump_filtered(RTM_GETROUTE, &body, |kind, route| {
            if kind == RTM_NEWROUTE {
                found.extend(destination(route, UNREACHABLE));
            }
        });
        match listed {
            Err(error) if is_gone(&error) => {}
            listed => listed.map_err(|source| RouteError::ListUnreachable { source })?,
        }
    }
    Ok(found)
}

/// Where a route leads, if it is one of ours: the kernel may list more than was asked for.
fn read(route: &[u8], ifindex: u32) -> Option<IpAddr> {
    let attributes = route.get(RTMSG..)?;
    if netlink::word(netlink::find(attributes, RTA_OIF)?, 0) != Some(ifindex)
        || [RTA_GATEWAY, RTA_PREFSRC]
            .into_iter()
            .any(|other| netlink::find(attributes, other).is_some())
    {
        return None;
    }
    destination(route, UNICAST)
}

/// The address that a route of this type leads to, if it is one of ours, to a single address.
fn destination(route: &[u8], wanted: u8) -> Option<IpAddr> {
    let (header, attributes) = route.split_at_checked(RTMSG)?;
    let [_, bits, _, _, table, protocol, _, kind, ..] = *header else {
        return None;
    };
    if (table, protocol, kind) != (MAIN, PROTOCOL, wanted) {
        return None;
    }
    let destination = netlink::find(attributes, RTA_DST)?;
    if let Ok(octets) = <[u8; 4]>::try_from(destination) {
        return (bits == 32).then(|| Ipv4Addr::from(octets).into());
    }
    let octets = <[u8; 16]>::try_from(destination).ok()?;
    (bits == 128).then(|| Ipv6Addr::from(octets).into())
}
