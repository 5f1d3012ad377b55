// SPDX-License-Identifier: Apache-2.0

//! Addresses of interfaces.

use std::net::IpAddr;

use ipnet::IpNet;
use netlink_packet_route::{
    AddressFamily, RouteNetlinkMessage,
    address::{AddressAttribute, AddressFlags, AddressMessage, AddressScope},
};

use crate::{CREATE, Link, NetError, Netlink, REPLACE};

/// An address of an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Address {
    pub address: IpNet,
    pub scope: AddressScope,
}

pub(crate) fn family(address: IpAddr) -> AddressFamily {
    match address {
        IpAddr::V4(_) => AddressFamily::Inet,
        IpAddr::V6(_) => AddressFamily::Inet6,
    }
}

fn message(link: &Link, address: IpNet) -> AddressMessage {
    let mut message = AddressMessage::default();
    message.header.family = family(address.addr());
    message.header.prefix_len = address.prefix_len();
    message.header.index = link.index;
    message.attributes = vec![
        AddressAttribute::Local(address.addr()),
        AddressAttribute::Address(address.addr()),
    ];
    if let IpNet::V4(network) = address
        && network.prefix_len() < 31
    {
        let broadcast = AddressAttribute::Broadcast(network.broadcast());
        message.attributes.push(broadcast);
    }
    message
}

impl Netlink {
    /// The addresses of an interface.
    pub fn addresses(&self, link: &Link) -> Result<Vec<Address>, NetError> {
        let mut request = AddressMessage::default();
        request.header.index = link.index;
        let what = format_args!("list addresses of interface {}", link.name);
        let listed = self.list(RouteNetlinkMessage::GetAddress(request), what)?;
        let of_link = listed.into_iter().filter_map(|message| match message {
            // Without strict checks the kernel lists those of all.
            RouteNetlinkMessage::NewAddress(message) if message.header.index == link.index => read(&message),
            _ => None,
        });
        Ok(of_link.collect())
    }

    /// Adds an address, usable at once: no duplicates of it are searched. One that is there stays.
    pub fn add_address(&self, link: &Link, address: IpNet) -> Result<(), NetError> {
        let mut message = message(link, address);
        if address.addr().is_ipv6() {
            let flags = AddressAttribute::Flags(AddressFlags::Nodad);
            message.attributes.push(flags);
        }
        let what = format_args!("add {address} to interface {}", link.name);
        self.change(RouteNetlinkMessage::NewAddress(message), CREATE | REPLACE, what)
    }

    pub fn delete_address(&self, link: &Link, address: IpNet) -> Result<(), NetError> {
        let what = format_args!("delete {address} of interface {}", link.name);
        self.change(RouteNetlinkMessage::DelAddress(message(link, address)), 0, what)
    }
}

fn read(message: &AddressMessage) -> Option<Address> {
    let (mut local, mut peer) = (None, None);
    for attribute in &message.attributes {
        match attribute {
            AddressAttribute::Local(address) => local = Some(*address),
            AddressAttribute::Address(address) => peer = Some(*address),
            _ => {}
        }
    }
    Some(Address {
        address: IpNet::new(local.or(peer)?, message.header.prefix_len).ok()?,
        scope: message.header.scope,
    })
}
