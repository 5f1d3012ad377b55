// SPDX-License-Identifier: Apache-2.0

//! Sources of device events.

use std::net::IpAddr;

use futures::stream::BoxStream;
use ipnet::IpNet;

use crate::device::{DeviceAddress, Vlan};
use crate::neighbor::{Neighbor, NeighborKey};
use crate::route::{Route, RouteKey};

/// A device without its addresses.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Link {
    /// Index in the kernel.
    pub index: u32,
    /// Name.
    pub name: String,
    /// Alternative names.
    pub alt_names: Vec<String>,
    /// MTU, in bytes.
    pub mtu: u32,
    /// Hardware address.
    pub hardware_addr: Box<[u8]>,
    /// Linux' flags (`IFF_*`).
    pub raw_flags: u32,
    /// Kind, such as `veth`; `device` for a physical one.
    pub kind: String,
    /// Index of the device that this is a part of; 0 for none.
    pub master_index: u32,
    /// Whether it can carry packets.
    pub oper_status: &'static str,
    /// The VLAN that it is the interface of.
    pub vlan: Option<Vlan>,
}

/// An address as a device has it: the same one more than once, if networks or peers differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkAddress {
    /// The address.
    pub own: DeviceAddress,
    /// The network that it is in; on a point-to-point device that of the peer.
    pub network: IpNet,
}

impl LinkAddress {
    /// What tells addresses of a device apart.
    pub(crate) fn key(&self) -> (IpAddr, IpNet) {
        (self.own.addr, self.network)
    }
}

/// A change of devices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeviceEvent {
    /// Earlier events may be stale: the full state follows, then [`Synced`](Self::Synced).
    Restart,
    /// A device was added or changed.
    Link(Link),
    /// A device was deleted.
    LinkGone(u32),
    /// A device has an address, or one of its addresses has changed.
    Address(u32, LinkAddress),
    /// A device has lost an address.
    AddressGone(u32, LinkAddress),
    /// There is a route, or it has changed.
    Route(Route),
    /// A route has replaced those of the same table, destination and metric.
    RouteReplaced(Route),
    /// A route was deleted.
    RouteGone(RouteKey),
    /// There is a neighbour, or it has changed.
    Neighbor(Neighbor),
    /// A neighbour was deleted.
    NeighborGone(NeighborKey),
    /// The full state has been delivered.
    Synced,
}

/// Why a source failed. Retried.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// The socket cannot be opened, or failed.
    #[error("netlink socket")]
    Socket(#[from] std::io::Error),
    /// The kernel rejected a list request.
    #[error("listing {what}")]
    List {
        /// Devices, addresses, routes or neighbours.
        what: &'static str,
        /// Cause.
        #[source]
        cause: rtnetlink::Error,
    },
    /// The connection ended.
    #[error("netlink connection ended")]
    Ended,
}

/// Events of a source; ends after an error.
pub type DeviceEvents = BoxStream<'static, Result<DeviceEvent, SourceError>>;

/// Reports devices: the kernel, or a fake.
pub trait DeviceSource: Send + Sync {
    /// The full state, then [`DeviceEvent::Synced`], then every change.
    fn events(&self) -> DeviceEvents;
}
