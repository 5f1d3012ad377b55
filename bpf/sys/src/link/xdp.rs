// SPDX-License-Identifier: Apache-2.0

//! Links of XDP programs.

use std::{
    io,
    os::fd::{AsFd as _, BorrowedFd},
};

use skep_base_net::{
    Link, LinkSpec, NetError, Netlink,
    packet::link::{LinkAttribute, LinkXdp, XdpAttached},
};

use super::{Attached, InterfaceLinks, LinkError, Pinned, detach, make_directory, open, program_name};
use crate::syscall::{self as sys, XDP_HOOK};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum XdpMode {
    /// The driver, before the kernel makes anything of a packet.
    Native,
    /// The kernel, for any driver; not faster than tc.
    Generic,
}

impl XdpMode {
    /// `XDP_FLAGS_DRV_MODE`, `XDP_FLAGS_SKB_MODE`.
    const fn flag(self) -> u32 {
        match self {
            Self::Native => 1 << 2,
            Self::Generic => 1 << 1,
        }
    }

    const fn hook(self) -> &'static str {
        match self {
            Self::Native => "XDP (native)",
            Self::Generic => "XDP (generic)",
        }
    }
}

/// The XDP program of an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct XdpProgram {
    pub(crate) id: u32,
    /// `None`: hardware, or more than one.
    pub(crate) mode: Option<XdpMode>,
}

impl InterfaceLinks {
    /// Attaches an XDP program as [`attach`](Self::attach) does others. An interface has one: a program of the same name
    /// without a link is replaced, any other is left alone.
    ///
    /// # Errors
    ///
    /// [`LinkError`]; [`LinkError::Occupied`] if there is another program. EOPNOTSUPP: the driver runs no programs.
    pub fn attach_xdp(
        &self,
        program: &str,
        program_fd: BorrowedFd<'_>,
        mode: XdpMode,
    ) -> Result<Attached, LinkError> {
        make_directory(&self.directory)?;
        let failed = |source| self.refused(program, mode.hook(), source);
        let there = self.xdp()?;
        if let Some(other) = there {
            let ours = match open(program, &self.directory.join(program))? {
                Some(link) => sys::link_info(link.as_fd())
                    .is_ok_and(|info| info.interface() == Some((self.index, XDP_HOOK))),
                None => false,
            };
            if ours && other.mode != Some(mode) {
                // One mode at a time: the old program goes before the new one comes.
                detach(&self.directory, program)?;
            } else if !ours {
                self.evict_xdp(program, other)?;
            }
        }
        let pinned = Pinned {
            program,
            program_fd,
            directory: &self.directory,
        };
        pinned.attach(
            |info| info.interface() == Some((self.index, XDP_HOOK)),
            || sys::link_create_at(program_fd, self.index, XDP_HOOK, mode.flag()).map_err(failed),
        )
    }

    /// Removes an XDP program of this name that has no link.
    ///
    /// # Errors
    ///
    /// [`LinkError`] if the interface is gone, or the program cannot be removed.
    pub fn remove_xdp(&self, program: &str) -> Result<bool, LinkError> {
        match self.xdp()? {
            Some(there) if is_named(there.id, program) => self.evict_xdp(program, there).map(|()| true),
            _ => Ok(false),
        }
    }

    /// Removes a program of this name that was attached without a link; any other stays.
    fn evict_xdp(&self, program: &str, there: XdpProgram) -> Result<(), LinkError> {
        let occupied = || LinkError::Occupied {
            program: program.to_owned(),
            interface: self.interface.clone(),
            other: program_name(there.id).ok().flatten(),
        };
        if !is_named(there.id, program) {
            return Err(occupied());
        }
        let flags = there.mode.map_or(0, XdpMode::flag);
        let none = LinkAttribute::Xdp(vec![LinkXdp::Fd(-1), LinkXdp::Flags(flags)]);
        let link = Link {
            index: self.index,
            name: self.interface.clone(),
            ..Link::default()
        };
        match Netlink::open().and_then(|net| net.set_link(&link, LinkSpec::new().attribute(none))) {
            // A link of another program is attached.
            Err(error) if error.errno() == Some(libc::EBUSY) => Err(occupied()),
            done => done.map_err(|error| self.refused(program, "XDP", error.into())),
        }
    }

    /// Id of the XDP program of the interface, ours or another.
    ///
    /// # Errors
    ///
    /// [`LinkError::List`].
    pub fn attached_xdp(&self) -> Result<Option<u32>, LinkError> {
        Ok(self.xdp()?.map(|program| program.id))
    }

    fn xdp(&self) -> Result<Option<XdpProgram>, LinkError> {
        let found = Netlink::open().and_then(|net| net.link_of_index(self.index));
        let link = found.map_err(|error: NetError| LinkError::List {
            interface: self.interface.clone(),
            source: error.into(),
        })?;
        let link = link.ok_or_else(|| LinkError::NoInterface {
            interface: self.interface.clone(),
        })?;
        Ok(xdp_of(&link))
    }
}

fn is_named(id: u32, program: &str) -> bool {
    // The kernel keeps 15 characters.
    program_name(id)
        .ok()
        .flatten()
        .is_some_and(|name| program.starts_with(&name))
}

/// What the kernel says of an interface's XDP program.
fn xdp_of(link: &Link) -> Option<XdpProgram> {
    let attributes = link.attributes.iter().find_map(|attribute| match attribute {
        LinkAttribute::Xdp(attributes) => Some(attributes),
        _ => None,
    })?;
    let (mut id, mut mode) = (0, None);
    for attribute in attributes {
        match attribute {
            LinkXdp::ProgId(number) => id = *number,
            LinkXdp::Attached(XdpAttached::Driver) => mode = Some(XdpMode::Native),
            LinkXdp::Attached(XdpAttached::SocketBuffer) => mode = Some(XdpMode::Generic),
            _ => {}
        }
    }
    (id != 0).then_some(XdpProgram { id, mode })
}

/// An interface of a network namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interface {
    pub name: String,
    pub index: u32,
    /// Id of its XDP program, ours or another.
    pub xdp: Option<u32>,
}

/// All interfaces of the calling thread's network namespace.
pub fn interfaces() -> io::Result<Vec<Interface>> {
    let links = Netlink::open()?.links()?;
    Ok(links
        .into_iter()
        .map(|link| Interface {
            xdp: xdp_of(&link).map(|program| program.id),
            name: link.name,
            index: link.index,
        })
        .collect())
}
