// SPDX-License-Identifier: Apache-2.0

//! Kubernetes objects to services, frontends and backends.
//!
//! Pure functions of an object and [`Rules`]: they read no table and write none. An object that can't be used as
//! a whole is a [`ConvertError`] that names it, and the caller keeps what it had; a part that can't be used (an
//! address, an annotation) is left out with a warning.

mod endpoints;
mod exposure;
mod hostport;
mod intern;
mod service;

#[cfg(test)]
mod tests;

pub(crate) use endpoints::distinct;
pub use endpoints::{SliceBackends, endpoint_slice};
pub use exposure::{is_exposed_on, names_a_node};
pub use hostport::{HOST_PORT_MARK, HostPortService, host_port_services};
pub use intern::Interner;
pub use service::{ServiceFrontends, service};

use std::net::IpAddr;

use skep_base_settings::PortRange;
use skep_k8s_types::slim::Protocol;
use skep_loadbalancer_model::types::{L4Proto, Source};

/// What conversion depends on besides the object.
#[derive(Debug, Clone)]
pub struct Rules {
    /// Source of everything that is made.
    pub source: Source,
    /// Whether IPv4 addresses are used.
    pub ipv4: bool,
    /// Whether IPv6 addresses are used.
    pub ipv6: bool,
    /// Whether node ports and host ports are served.
    pub replaces_kube_proxy: bool,
    /// Whether `service.cilium.io/forwarding-mode` is read.
    pub forwarding_mode_annotation: bool,
    /// Ports that belong to node ports, and can't be host ports.
    pub node_ports: PortRange,
    /// Whether the kernel can tell sockets of the host's network namespace, which host ports on loopback
    /// addresses need.
    pub loopback_host_ports: bool,
}

impl Default for Rules {
    /// Objects of Kubernetes, both families, no kube-proxy replacement, default node-port range.
    fn default() -> Self {
        Self {
            source: Source::Kubernetes,
            ipv4: true,
            ipv6: true,
            replaces_kube_proxy: false,
            forwarding_mode_annotation: false,
            node_ports: PortRange::default(),
            loopback_host_ports: false,
        }
    }
}

impl Rules {
    /// Whether addresses of the family of `ip` are used.
    pub fn allows(&self, ip: IpAddr) -> bool {
        if ip.is_ipv4() { self.ipv4 } else { self.ipv6 }
    }
}

/// Why an object can't be used as a whole.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{kind} {namespace}/{name}: {fault}")]
pub struct ConvertError {
    /// Kind of the object, in lower case.
    pub kind: &'static str,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// What is wrong with it.
    pub fault: Fault,
}

/// What is wrong with an object.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// A service port has no protocol, or one that doesn't exist.
    #[error("invalid L4 protocol \"{0}\": unknown protocol '{0}'")]
    Protocol(String),
    /// A port number that no packet can carry.
    #[error("{field}: {number} is not a port number")]
    Port {
        /// Field of the object.
        field: &'static str,
        /// The number.
        number: i32,
    },
    /// An object without a name or namespace, which no API server delivers but a file can.
    #[error("{0} is missing")]
    Missing(&'static str),
}

/// The protocol of a service port, which must be spelled out.
fn protocol(protocol: &Protocol) -> Result<L4Proto, Fault> {
    match protocol {
        Protocol::Tcp => Ok(L4Proto::Tcp),
        Protocol::Udp => Ok(L4Proto::Udp),
        Protocol::Sctp => Ok(L4Proto::Sctp),
        Protocol::Unset | Protocol::Other(_) => Err(Fault::Protocol(protocol.as_str().to_owned())),
    }
}

/// The protocol of an endpoint or container port: TCP unless another is named, `None` for unknown ones.
fn protocol_or_tcp(named: &Protocol) -> Option<L4Proto> {
    if named.is_unset() {
        Some(L4Proto::Tcp)
    } else {
        protocol(named).ok()
    }
}

/// A number from the wire as a port; zero is none.
fn port(field: &'static str, number: i32) -> Result<u16, Fault> {
    u16::try_from(number)
        .ok()
        .filter(|&port| port != 0)
        .ok_or(Fault::Port { field, number })
}

/// An address from the wire; IPv4-mapped addresses are IPv4 addresses.
fn address(text: &str) -> Option<IpAddr> {
    text.parse::<IpAddr>().ok().map(|ip| ip.to_canonical())
}
