// SPDX-License-Identifier: Apache-2.0

//! Neighbours: which hardware address an address of a network has.

use std::net::IpAddr;

use netlink_packet_route::{
    AddressFamily, RouteNetlinkMessage,
    neighbour::{
        NeighbourAddress, NeighbourAttribute, NeighbourExtFlags, NeighbourFlags, NeighbourMessage,
        NeighbourState,
    },
    route::RouteType,
};

use crate::{CREATE, NetError, Netlink, REPLACE, address::family};

/// A neighbour of an interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Neighbour {
    /// Index of the interface.
    pub device: u32,
    pub address: IpAddr,
    pub mac: Option<Vec<u8>>,
    pub state: NeighbourState,
    pub flags: NeighbourFlags,
    pub ext_flags: NeighbourExtFlags,
    pub kind: RouteType,
}

impl Neighbour {
    /// One without a hardware address.
    pub fn new(device: u32, address: IpAddr) -> Self {
        Self {
            device,
            address,
            mac: None,
            state: NeighbourState::None,
            flags: NeighbourFlags::empty(),
            ext_flags: NeighbourExtFlags::empty(),
            kind: RouteType::Unspec,
        }
    }

    fn message(&self) -> NeighbourMessage {
        let mut message = NeighbourMessage::default();
        let header = &mut message.header;
        header.family = family(self.address);
        header.ifindex = self.device;
        header.state = self.state;
        header.flags = self.flags;
        header.kind = self.kind;
        let address = NeighbourAttribute::Destination(self.address.into());
        message.attributes.push(address);
        let mac = self.mac.clone().map(NeighbourAttribute::LinkLayerAddress);
        message.attributes.extend(mac);
        if !self.ext_flags.is_empty() {
            let flags = NeighbourAttribute::ExtFlags(self.ext_flags);
            message.attributes.push(flags);
        }
        message
    }

    /// Reads a message. `None` for other families, such as entries of bridges.
    pub fn read(message: &NeighbourMessage) -> Option<Self> {
        let header = &message.header;
        if !matches!(header.family, AddressFamily::Inet | AddressFamily::Inet6) {
            return None;
        }
        let address = message.attributes.iter().find_map(|attribute| match attribute {
            NeighbourAttribute::Destination(NeighbourAddress::Inet(address)) => Some(IpAddr::V4(*address)),
            NeighbourAttribute::Destination(NeighbourAddress::Inet6(address)) => Some(IpAddr::V6(*address)),
            _ => None,
        });
        let mut neighbour = Self {
            state: header.state,
            flags: header.flags,
            kind: header.kind,
            ..Self::new(header.ifindex, address?)
        };
        for attribute in &message.attributes {
            match attribute {
                NeighbourAttribute::LinkLayerAddress(mac) => neighbour.mac = Some(mac.clone()),
                NeighbourAttribute::ExtFlags(flags) => neighbour.ext_flags = *flags,
                _ => {}
            }
        }
        Some(neighbour)
    }
}

impl Netlink {
    /// Lists neighbours of both families.
    pub fn neighbours(&self) -> Result<Vec<Neighbour>, NetError> {
        let request = RouteNetlinkMessage::GetNeighbour(NeighbourMessage::default());
        let listed = self.list(request, "list neighbours")?;
        let read = listed.iter().filter_map(|message| match message {
            RouteNetlinkMessage::NewNeighbour(message) => Neighbour::read(message),
            _ => None,
        });
        Ok(read.collect())
    }

    /// The neighbour of an interface with an address.
    pub fn neighbour(&self, device: u32, address: IpAddr) -> Result<Option<Neighbour>, NetError> {
        let request = RouteNetlinkMessage::GetNeighbour(Neighbour::new(device, address).message());
        let what = format_args!("look for neighbour {address} of interface {device}");
        match self.get(request, what) {
            Ok(Some(RouteNetlinkMessage::NewNeighbour(message))) => Ok(Neighbour::read(&message)),
            Err(error) if !error.is_gone() => Err(error),
            _ => Ok(None),
        }
    }

    /// Adds a neighbour, or replaces one of the same interface and address.
    pub fn set_neighbour(&self, neighbour: &Neighbour) -> Result<(), NetError> {
        let message = RouteNetlinkMessage::NewNeighbour(neighbour.message());
        let what = format_args!(
            "set neighbour {} of interface {}",
            neighbour.address, neighbour.device
        );
        self.change(message, CREATE | REPLACE, what)
    }

    /// Deletes a neighbour. Returns false if it is gone already.
    pub fn delete_neighbour(&self, neighbour: &Neighbour) -> Result<bool, NetError> {
        let key = Neighbour::new(neighbour.device, neighbour.address);
        let what = format_args!("delete neighbour {} of interface {}", key.address, key.device);
        match self.change(RouteNetlinkMessage::DelNeighbour(key.message()), 0, what) {
            Err(error) if error.is_gone() => Ok(false),
            done => done.map(|()| true),
        }
    }
}
