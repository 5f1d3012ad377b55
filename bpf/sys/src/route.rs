// SPDX-License-Identifier: Apache-2.0

//! Routes to single addresses by an interface, in the main table: those to endpoints.

use std::{
    collections::BTreeSet,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use crate::netlink::{self, Body, NLM_F_CREATE, NLM_F_REPLACE};

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

/// Why routes of an interface are not as they should be.
#[derive(Debug, thiserror::Error)]
pub enum RouteError {
    /// The routes cannot be listed.
    #[error("routes by interface {ifindex} cannot be listed")]
    List {
        /// Index of the interface.
        ifindex: u32,
        /// What the kernel says.
        #[source]
        source: io::Error,
    },
    /// The route was not added. With `ENODEV` the interface is gone.
    #[error("no route to {address} by interface {ifindex}")]
    Add {
        /// Where it leads.
        address: IpAddr,
        /// Index of the interface.
        ifindex: u32,
        /// What the kernel says.
        #[source]
        source: io::Error,
    },
    /// The route was not removed.
    #[error("the route to {address} by interface {ifindex} cannot be removed")]
    Remove {
        /// Where it leads.
        address: IpAddr,
        /// Index of the interface.
        ifindex: u32,
        /// What the kernel says.
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
        let structure = [family as u8, 0, 0, 0, MAIN, PROTOCOL, 0, UNICAST, 0, 0, 0, 0];
        let body = Body::new(&structure).attribute(RTA_OIF, &ifindex.to_ne_bytes());
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

fn message(ifindex: u32, address: IpAddr) -> Body {
    // IPv4: the host is on the link. IPv6 has no scopes of routes.
    let (family, bits, scope) = match address {
        IpAddr::V4(_) => (libc::AF_INET, 32, 253),
        IpAddr::V6(_) => (libc::AF_INET6, 128, 0),
    };
    let structure = [
        family as u8,
        bits,
        0,
        0,
        MAIN,
        PROTOCOL,
        scope,
        UNICAST,
        0,
        0,
        0,
        0,
    ];
    let octets = match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    };
    Body::new(&structure)
        .attribute(RTA_DST, &octets)
        .attribute(RTA_OIF, &ifindex.to_ne_bytes())
}

/// Where a route leads, if it is one of ours: the kernel may list more than was asked for.
fn read(route: &[u8], ifindex: u32) -> Option<IpAddr> {
    let (header, attributes) = route.split_at_checked(RTMSG)?;
    let [_, bits, _, _, table, protocol, _, kind, ..] = *header else {
        return None;
    };
    if (table, protocol, kind) != (MAIN, PROTOCOL, UNICAST)
        || netlink::word(netlink::find(attributes, RTA_OIF)?, 0) != Some(ifindex)
        || [RTA_GATEWAY, RTA_PREFSRC]
            .into_iter()
            .any(|other| netlink::find(attributes, other).is_some())
    {
        return None;
    }
    let destination = netlink::find(attributes, RTA_DST)?;
    if let Ok(octets) = <[u8; 4]>::try_from(destination) {
        return (bits == 32).then(|| Ipv4Addr::from(octets).into());
    }
    let octets = <[u8; 16]>::try_from(destination).ok()?;
    (bits == 128).then(|| Ipv6Addr::from(octets).into())
}
