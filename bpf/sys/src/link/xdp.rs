// SPDX-License-Identifier: Apache-2.0

//! Links of XDP programs.

use std::{
    io,
    os::fd::{AsFd as _, BorrowedFd},
};

use super::{Attached, InterfaceLinks, LinkError, Pinned, detach, make_directory, open, program_name};
use crate::{
    netlink::{self, Body},
    syscall::{self as sys, XDP_HOOK},
};

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

const RTM_GETLINK: u16 = 18;
const RTM_SETLINK: u16 = 19;
const IFLA_IFNAME: u16 = 3;
const IFLA_XDP: u16 = 43;
const IFLA_XDP_FD: u16 = 1;
const IFLA_XDP_ATTACHED: u16 = 2;
const IFLA_XDP_FLAGS: u16 = 3;
const IFLA_XDP_PROG_ID: u16 = 4;
/// Bytes of `struct ifinfomsg`.
const IFINFO: usize = 16;

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
        let xdp = Body::default()
            .attribute(IFLA_XDP_FD, &(-1_i32).to_ne_bytes())
            .attribute(IFLA_XDP_FLAGS, &flags.to_ne_bytes());
        let body = Body::new(&interface(self.index)).nested(IFLA_XDP, &xdp);
        match netlink::request(RTM_SETLINK, 0, &body) {
            // A link of another program is attached.
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => Err(occupied()),
            result => result.map_err(|source| self.refused(program, "XDP", source)),
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
        xdp_program(self.index).map_err(|source| match source.raw_os_error() {
            Some(libc::ENODEV) => LinkError::NoInterface {
                interface: self.interface.clone(),
            },
            _ => LinkError::List {
                interface: self.interface.clone(),
                source,
            },
        })
    }
}

fn is_named(id: u32, program: &str) -> bool {
    // The kernel keeps 15 characters.
    program_name(id)
        .ok()
        .flatten()
        .is_some_and(|name| program.starts_with(&name))
}

/// `struct ifinfomsg`
fn interface(index: u32) -> Vec<u8> {
    let mut structure = vec![0_u8; IFINFO];
    structure.splice(4..8, index.to_ne_bytes());
    structure
}

fn xdp_program(index: u32) -> io::Result<Option<XdpProgram>> {
    let mut found = None;
    netlink::ask(RTM_GETLINK, &Body::new(&interface(index)), |_, message| {
        found = xdp_of(message).or(found);
    })?;
    Ok(found)
}

/// What the kernel says of an interface's XDP program.
fn xdp_of(message: &[u8]) -> Option<XdpProgram> {
    let xdp = netlink::find(message.get(IFINFO..)?, IFLA_XDP)?;
    let mode = match netlink::find(xdp, IFLA_XDP_ATTACHED).and_then(<[u8]>::first) {
        Some(1) => Some(XdpMode::Native),
        Some(2) => Some(XdpMode::Generic),
        _ => None,
    };
    let id = netlink::word(netlink::find(xdp, IFLA_XDP_PROG_ID)?, 0)?;
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
    let mut found = Vec::new();
    netlink::dump(RTM_GETLINK, &Body::new(&interface(0)), |_, message| {
        let name = message
            .get(IFINFO..)
            .and_then(|attributes| netlink::find(attributes, IFLA_IFNAME))
            .map(netlink::text);
        found.extend(
            name.zip(netlink::word(message, 4))
                .map(|(name, index)| Interface {
                    name,
                    index,
                    xdp: xdp_of(message).map(|program| program.id),
                }),
        );
    })?;
    Ok(found)
}
