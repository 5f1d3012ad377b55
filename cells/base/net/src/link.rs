// SPDX-License-Identifier: Apache-2.0

//! Interfaces.

use std::os::fd::{AsRawFd as _, BorrowedFd};

use netlink_packet_route::{
    RouteNetlinkMessage,
    link::{
        AfSpecInet6, AfSpecUnspec, In6AddrGenMode, InfoBridge, InfoData, InfoKind, InfoVeth, InfoVlan,
        InfoVxlan, LinkAttribute, LinkFlags, LinkInfo, LinkMessage, Prop, State,
    },
};

use crate::{CREATE, EXCLUSIVE, NetError, Netlink, netlink::APPEND};

/// An interface.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Link {
    pub index: u32,
    pub name: String,
    pub mac: Option<[u8; 6]>,
    pub mtu: u32,
    pub flags: LinkFlags,
    /// Index of the peer of a veth link, or of the interface below.
    pub peer: Option<u32>,
    pub attributes: Vec<LinkAttribute>,
}

impl From<LinkMessage> for Link {
    fn from(message: LinkMessage) -> Self {
        let mut link = Self {
            index: message.header.index,
            flags: message.header.flags,
            ..Self::default()
        };
        for attribute in &message.attributes {
            match attribute {
                LinkAttribute::IfName(name) => link.name.clone_from(name),
                LinkAttribute::Mtu(mtu) => link.mtu = *mtu,
                LinkAttribute::Address(bytes) => link.mac = bytes.as_slice().try_into().ok(),
                LinkAttribute::Link(index) => link.peer = Some(*index),
                _ => {}
            }
        }
        link.attributes = message.attributes;
        link
    }
}

impl Link {
    pub fn is_up(&self) -> bool {
        self.flags.contains(LinkFlags::Up)
    }

    /// Kind and data of the driver.
    pub fn info(&self) -> &[LinkInfo] {
        let found = self.attributes.iter().find_map(|attribute| match attribute {
            LinkAttribute::LinkInfo(info) => Some(info.as_slice()),
            _ => None,
        });
        found.unwrap_or_default()
    }

    /// Kind, such as `veth`; none of a physical interface.
    pub fn kind(&self) -> Option<String> {
        self.info().iter().find_map(|info| match info {
            LinkInfo::Kind(kind) => Some(kind.to_string()),
            _ => None,
        })
    }

    /// Whether it can carry packets: `up`, `down`, `unknown`, `lower-layer-down` ….
    pub fn state(&self) -> &'static str {
        let state = self.attributes.iter().find_map(|attribute| match attribute {
            LinkAttribute::OperState(state) => Some(*state),
            _ => None,
        });
        match state {
            Some(State::NotPresent) => "not-present",
            Some(State::Down) => "down",
            Some(State::LowerLayerDown) => "lower-layer-down",
            Some(State::Testing) => "testing",
            Some(State::Dormant) => "dormant",
            Some(State::Up) => "up",
            _ => "unknown",
        }
    }

    pub fn is_kind(&self, kind: InfoKind) -> bool {
        self.info().contains(&LinkInfo::Kind(kind))
    }
}

/// A link to add, or a change of one.
#[derive(Debug, Clone, Default)]
pub struct LinkSpec(LinkMessage);

impl LinkSpec {
    /// No change yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// A pair of veth links.
    pub fn veth(name: &str, peer: Self) -> Self {
        let data = InfoData::Veth(InfoVeth::Peer(peer.0));
        Self::new().name(name).info(InfoKind::Veth, data)
    }

    pub fn bridge(name: &str) -> Self {
        let data = InfoData::Bridge(Vec::<InfoBridge>::new());
        Self::new().name(name).info(InfoKind::Bridge, data)
    }

    pub fn vxlan(name: &str, data: Vec<InfoVxlan>) -> Self {
        Self::new()
            .name(name)
            .info(InfoKind::Vxlan, InfoData::Vxlan(data))
    }

    /// The interface of a VLAN that the interface of index `parent` carries.
    pub fn vlan(name: &str, parent: u32, id: u16) -> Self {
        let data = InfoData::Vlan(vec![InfoVlan::Id(id)]);
        Self::new()
            .name(name)
            .attribute(LinkAttribute::Link(parent))
            .info(InfoKind::Vlan, data)
    }

    pub fn dummy(name: &str) -> Self {
        let kind = LinkInfo::Kind(InfoKind::Dummy);
        Self::new()
            .name(name)
            .attribute(LinkAttribute::LinkInfo(vec![kind]))
    }

    fn info(self, kind: InfoKind, data: InfoData) -> Self {
        self.attribute(LinkAttribute::LinkInfo(vec![
            LinkInfo::Kind(kind),
            LinkInfo::Data(data),
        ]))
    }

    #[must_use]
    pub fn attribute(mut self, attribute: LinkAttribute) -> Self {
        self.0.attributes.push(attribute);
        self
    }

    #[must_use]
    pub fn name(self, name: &str) -> Self {
        self.attribute(LinkAttribute::IfName(name.to_owned()))
    }

    #[must_use]
    pub fn mtu(self, mtu: u32) -> Self {
        self.attribute(LinkAttribute::Mtu(mtu))
    }

    #[must_use]
    pub fn mac(self, mac: [u8; 6]) -> Self {
        self.attribute(LinkAttribute::Address(mac.to_vec()))
    }

    /// Makes it a port of the bridge of this index.
    #[must_use]
    pub fn controller(self, index: u32) -> Self {
        self.attribute(LinkAttribute::Controller(index))
    }

    /// Moves it to a network namespace.
    #[must_use]
    pub fn netns(self, namespace: BorrowedFd<'_>) -> Self {
        self.attribute(LinkAttribute::NetNsFd(namespace.as_raw_fd()))
    }

    /// More names.
    #[must_use]
    pub fn alternative_name(self, name: &str) -> Self {
        self.attribute(LinkAttribute::PropList(vec![Prop::AltIfName(name.to_owned())]))
    }

    #[must_use]
    pub fn up(self) -> Self {
        self.flag(LinkFlags::Up, true)
    }

    #[must_use]
    pub fn down(self) -> Self {
        self.flag(LinkFlags::Up, false)
    }

    /// No ARP and no neighbour discovery.
    #[must_use]
    pub fn no_arp(self) -> Self {
        self.flag(LinkFlags::Noarp, true)
    }

    /// Gets no link-local address of IPv6 when it is set up.
    #[must_use]
    pub fn no_link_local(self) -> Self {
        let mode = AfSpecInet6::AddrGenMode(In6AddrGenMode::None);
        self.attribute(LinkAttribute::AfSpecUnspec(vec![AfSpecUnspec::Inet6(vec![mode])]))
    }

    fn flag(mut self, flag: LinkFlags, is_set: bool) -> Self {
        self.0.header.flags.set(flag, is_set);
        self.0.header.change_mask |= flag;
        self
    }
}

/// A request for a link by its name.
fn named(name: &str) -> LinkMessage {
    LinkSpec::new().name(name).0
}

impl Netlink {
    pub fn links(&self) -> Result<Vec<Link>, NetError> {
        let listed = self.list(
            RouteNetlinkMessage::GetLink(LinkMessage::default()),
            "list interfaces",
        )?;
        Ok(listed.into_iter().filter_map(link).collect())
    }

    pub fn find_link(&self, name: &str) -> Result<Option<Link>, NetError> {
        self.one_link(named(name), name)
    }

    /// As [`find_link`](Self::find_link); one that is missing is an error.
    pub fn link(&self, name: &str) -> Result<Link, NetError> {
        self.find_link(name)?
            .ok_or_else(|| NetError::Missing(name.to_owned()))
    }

    pub fn link_of_index(&self, index: u32) -> Result<Option<Link>, NetError> {
        let mut message = LinkMessage::default();
        message.header.index = index;
        self.one_link(message, &index.to_string())
    }

    fn one_link(&self, message: LinkMessage, name: &str) -> Result<Option<Link>, NetError> {
        let what = format_args!("look for interface {name}");
        match self.get(RouteNetlinkMessage::GetLink(message), what) {
            Err(error) if error.errno() == Some(libc::ENODEV) => Ok(None),
            found => Ok(found?.and_then(link)),
        }
    }

    pub fn add_link(&self, spec: LinkSpec) -> Result<(), NetError> {
        let names: Vec<_> = spec.0.attributes.iter().filter_map(name_of).collect();
        let what = format!("add interface {}", names.join(" and "));
        self.change(RouteNetlinkMessage::NewLink(spec.0), CREATE | EXCLUSIVE, what)
    }

    pub fn set_link(&self, link: &Link, change: LinkSpec) -> Result<(), NetError> {
        let what = format_args!("change interface {}", link.name);
        let mut message = change.0;
        message.header.index = link.index;
        self.change(RouteNetlinkMessage::SetLink(message), 0, what)
    }

    /// Adds what [`LinkSpec::alternative_name`] has.
    pub fn add_names(&self, link: &Link, names: LinkSpec) -> Result<(), NetError> {
        let what = format_args!("add names to interface {}", link.name);
        let mut message = names.0;
        message.header.index = link.index;
        self.change(
            RouteNetlinkMessage::NewLinkProp(message),
            CREATE | EXCLUSIVE | APPEND,
            what,
        )
    }

    /// Deletes a link, and its peer. Returns false if it is gone already.
    pub fn delete_link(&self, name: &str) -> Result<bool, NetError> {
        let what = format_args!("delete interface {name}");
        match self.change(RouteNetlinkMessage::DelLink(named(name)), 0, what) {
            Err(error) if error.errno() == Some(libc::ENODEV) => Ok(false),
            done => done.map(|()| true),
        }
    }
}

fn name_of(attribute: &LinkAttribute) -> Option<&str> {
    match attribute {
        LinkAttribute::IfName(name) => Some(name),
        _ => None,
    }
}

fn link(message: RouteNetlinkMessage) -> Option<Link> {
    match message {
        RouteNetlinkMessage::NewLink(message) => Some(message.into()),
        _ => None,
    }
}
