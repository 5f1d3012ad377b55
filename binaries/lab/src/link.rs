// SPDX-License-Identifier: Apache-2.0

//! Links, addresses and routes inside the namespaces of other processes.

use std::{net::IpAddr, path::Path};

use ipnet::IpNet;
use skep_base_net::{
    LinkSpec, NetError, Netlink, Route,
    netns::{self, NetnsError},
    packet::{link::LinkAttribute, route::RouteScope},
    sysctl,
};

/// Why the network could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The process has ended, or this one may not enter its namespaces.
    #[error(transparent)]
    Namespace(#[from] NetnsError),
    #[error(transparent)]
    Net(#[from] NetError),
}

/// Runs `work` on a thread inside the network namespace of process `pid`.
pub fn inside<T: Send>(
    pid: u32,
    work: impl FnOnce(Net) -> Result<T, LinkError> + Send,
) -> Result<T, LinkError> {
    let path = format!("/proc/{pid}/ns/net");
    netns::inside(Path::new(&path), || work(Net(Netlink::open()?)))?
}

/// The links of a network namespace.
#[derive(Debug)]
pub struct Net(Netlink);

impl Net {
    /// Creates a pair of links, `name` in this namespace, `peer` in that of process `pid`.
    pub fn veth(&self, name: &str, peer: &str, pid: u32) -> Result<(), NetError> {
        let peer = LinkSpec::new().name(peer).attribute(LinkAttribute::NetNsPid(pid));
        self.0.add_link(LinkSpec::veth(name, peer))
    }

    /// Creates a bridge and sets it up.
    pub fn bridge(&self, name: &str) -> Result<(), NetError> {
        self.0.add_link(LinkSpec::bridge(name).up())
    }

    /// Makes `name` a port of the bridge `bridge` and sets it up.
    pub fn enslave(&self, name: &str, bridge: &str) -> Result<(), NetError> {
        let bridge = self.0.link(bridge)?.index;
        self.0
            .set_link(&self.0.link(name)?, LinkSpec::new().controller(bridge).up())
    }

    pub fn up(&self, name: &str) -> Result<(), NetError> {
        self.0.set_link(&self.0.link(name)?, LinkSpec::new().up())
    }

    /// Removes a link (and its peer). One that is not there is fine.
    pub fn delete(&self, name: &str) -> Result<(), NetError> {
        self.0.delete_link(name).map(drop)
    }

    pub fn address(&self, name: &str, address: IpAddr, prefix: u8) -> Result<(), NetError> {
        self.0
            .add_address(&self.0.link(name)?, IpNet::new_assert(address, prefix))
    }

    /// Adds a route to `network` through `gateway`, which is reached over the link `via`.
    pub fn route(&self, (network, prefix): (IpAddr, u8), gateway: IpAddr, via: &str) -> Result<(), NetError> {
        self.0.add_route(&Route {
            device: Some(self.0.link(via)?.index),
            gateway: Some(gateway),
            ..Route::to(IpNet::new_assert(network, prefix))
        })
    }

    /// Adds a route to one address, directly over the link `via`.
    pub fn host_route(&self, address: IpAddr, via: &str) -> Result<(), NetError> {
        self.0.add_route(&Route {
            device: Some(self.0.link(via)?.index),
            scope: match address {
                IpAddr::V4(_) => RouteScope::Link,
                IpAddr::V6(_) => RouteScope::Universe,
            },
            ..Route::to(address.into())
        })
    }
}

/// Settings of a namespace that forwards: routing on, addresses usable at once.
pub fn router_settings() -> Result<(), NetError> {
    sysctl::set("net/ipv4/ip_forward", "1")?;
    sysctl::set("net/ipv6/conf/all/forwarding", "1")?;
    for scope in ["all", "default"] {
        // ICMP redirects would replace the routes of machines.
        sysctl::set(&format!("net/ipv4/conf/{scope}/send_redirects"), "0")?;
    }
    immediate_addresses()
}

/// Disables duplicate-address detection for links created later: IPv6 addresses work at once.
pub fn immediate_addresses() -> Result<(), NetError> {
    for scope in ["all", "default"] {
        sysctl::set(&format!("net/ipv6/conf/{scope}/accept_dad"), "0")?;
        sysctl::set(&format!("net/ipv6/conf/{scope}/disable_ipv6"), "0")?;
    }
    Ok(())
}
