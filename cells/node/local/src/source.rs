// SPDX-License-Identifier: Apache-2.0

//! Where knowledge of devices comes from.

use futures::stream::BoxStream;

use crate::device::DeviceAddress;
use crate::selection::Route;

/// A device without its addresses.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Link {
    /// Index in the kernel.
    pub index: u32,
    /// Name.
    pub name: String,
    /// Further names.
    pub alt_names: Vec<String>,
    /// Largest packet in bytes.
    pub mtu: u32,
    /// Hardware address.
    pub hardware_addr: Box<[u8]>,
    /// Linux' flags (`IFF_*`).
    pub raw_flags: u32,
    /// Sort, such as `veth`; `device` for a physical one.
    pub kind: String,
    /// Index of the device that this is a part of; 0 for none.
    pub master_index: u32,
    /// Whether it can carry packets.
    pub oper_status: &'static str,
}

/// A change of devices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeviceEvent {
    /// What was told before may be wrong: everything comes again, then [`Synced`](Self::Synced).
    Restart,
    /// A device is there, in this state.
    Link(Link),
    /// A device is gone.
    LinkGone(u32),
    /// A device has an address.
    Address(u32, DeviceAddress),
    /// A device has lost an address.
    AddressGone(u32, DeviceAddress),
    /// The main table has a route through a device.
    Route(u32, Route),
    /// The main table has lost a route through a device.
    RouteGone(u32, Route),
    /// Everything has been told.
    Synced,
}

/// Why devices cannot be followed. Tried again.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// No socket, or it broke.
    #[error("netlink socket")]
    Socket(#[from] std::io::Error),
    /// The kernel refused to list.
    #[error("listing {what}")]
    List {
        /// Devices, addresses or routes.
        what: &'static str,
        /// What it said.
        #[source]
        cause: rtnetlink::Error,
    },
    /// The connection ended.
    #[error("netlink connection ended")]
    Ended,
}

/// Events of a source; ends after an error.
pub type DeviceEvents = BoxStream<'static, Result<DeviceEvent, SourceError>>;

/// Tells of devices: the kernel, or a test.
pub trait DeviceSource: Send + Sync {
    /// Everything that is there, then [`DeviceEvent::Synced`], then every change.
    fn events(&self) -> DeviceEvents;
}
