// SPDX-License-Identifier: Apache-2.0

//! Routes of the kernel to networks of other nodes' pods: listed and removed, whoever made them.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    time::Duration,
};

use futures::TryStreamExt as _;
use ipnet::IpNet;
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteMetric, RouteProtocol, RouteVia,
};
use rtnetlink::{Handle, RouteMessageBuilder};

use skep_base_net::{NetError, failed};

/// Marks the routes that are made here, so that a later process finds them.
pub(crate) const PROTOCOL: RouteProtocol = RouteProtocol::Other(207);
/// How often routes are compared with those of the kernel.
pub(crate) const CHECK_INTERVAL: Duration = Duration::from_secs(60);
/// Changes within this time are applied at once.
pub(crate) const SETTLE: Duration = Duration::from_millis(500);
/// Pause before what failed is tried again.
pub(crate) const RETRY: Duration = Duration::from_secs(5);

/// A route of the kernel to a network.
#[derive(Debug)]
pub(crate) struct Route {
    pub(crate) network: IpNet,
    /// Index of the interface; none of a route with several next hops.
    pub(crate) device: Option<u32>,
    pub(crate) gateway: Option<IpAddr>,
    pub(crate) mtu: Option<u32>,
    message: RouteMessage,
}

impl Route {
    /// The route of a message; `None` for a default route.
    fn new(message: RouteMessage) -> Option<Self> {
        let bits = message.header.destination_prefix_length;
        let network = message.attributes.iter().find_map(|attribute| match attribute {
            RouteAttribute::Destination(address) => IpNet::new(ip(address)?, bits).ok(),
            _ => None,
        })?;
        let mtu = message.attributes.iter().find_map(|attribute| match attribute {
            RouteAttribute::Metrics(metrics) => metrics.iter().find_map(|metric| match metric {
                RouteMetric::Mtu(mtu) => Some(*mtu),
                _ => None,
            }),
            _ => None,
        });
        Some(Self {
            network,
            device: device(&message),
            gateway: gateway(&message),
            mtu,
            message,
        })
    }

    /// It was made here, by this process or an earlier one.
    pub(crate) fn is_ours(&self) -> bool {
        self.message.header.protocol == PROTOCOL
    }

    /// It is in the table that all packets look up.
    pub(crate) fn is_in_main_table(&self) -> bool {
        self.message.header.table == RouteHeader::RT_TABLE_MAIN
    }
}

fn ip(address: &RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(address) => Some(IpAddr::V4(*address)),
        RouteAddress::Inet6(address) => Some(IpAddr::V6(*address)),
        _ => None,
    }
}

/// The gateway of a route or of the answer to a lookup.
pub(crate) fn gateway(message: &RouteMessage) -> Option<IpAddr> {
    message.attributes.iter().find_map(|attribute| match attribute {
        RouteAttribute::Gateway(address) => ip(address),
        RouteAttribute::Via(RouteVia::Inet(address)) => Some(IpAddr::V4(*address)),
        RouteAttribute::Via(RouteVia::Inet6(address)) => Some(IpAddr::V6(*address)),
        _ => None,
    })
}

/// The interface of a route or of the answer to a lookup.
pub(crate) fn device(message: &RouteMessage) -> Option<u32> {
    message.attributes.iter().find_map(|attribute| match attribute {
        RouteAttribute::Oif(index) => Some(*index),
        _ => None,
    })
}

/// Lists the routes to networks, of both families.
pub(crate) async fn list(handle: &Handle) -> Result<Vec<Route>, NetError> {
    let families = [
        RouteMessageBuilder::<Ipv4Addr>::new().build(),
        RouteMessageBuilder::<Ipv6Addr>::new().build(),
    ];
    let mut found = Vec::new();
    for family in families {
        let mut listed = handle.route().get(family).execute();
        while let Some(message) = listed.try_next().await.map_err(failed("list routes"))? {
            found.extend(Route::new(message));
        }
    }
    Ok(found)
}

/// Removes a route; one that is gone already is fine.
pub(crate) async fn remove(handle: &Handle, route: Route, to: &str) -> Result<(), NetError> {
    let what = format!("remove the route of {} to {to}", route.network);
    match handle.route().del(route.message).execute().await {
        Err(rtnetlink::Error::NetlinkError(answer)) if answer.raw_code() == -libc::ESRCH => Ok(()),
        done => done.map_err(failed(what)),
    }
}
