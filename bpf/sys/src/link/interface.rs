// SPDX-License-Identifier: Apache-2.0

//! Links of programs on a network interface: tcx (Linux 6.6) and XDP.

use std::{
    ffi::CString,
    io,
    os::fd::BorrowedFd,
    path::{Path, PathBuf},
};

use super::{Attached, LinkError, Pinned, make_directory};
use crate::syscall as sys;

/// Direction of packets on an interface; numbers of tcx links in `enum bpf_attach_type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u32)]
pub enum InterfaceHook {
    Ingress = 46,
    Egress = 47,
}

impl InterfaceHook {
    /// `ingress` or `egress`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ingress => "ingress",
            Self::Egress => "egress",
        }
    }
}

/// Run after the programs that are there.
const BPF_F_AFTER: u32 = 1 << 4;
/// Loopback is the first interface of every network namespace.
const LOOPBACK: u32 = 1;

/// The kernel has links for tc programs (tcx, Linux 6.6), and this process may use them.
pub fn has_interface_links() -> bool {
    sys::prog_query_at(LOOPBACK, InterfaceHook::Ingress as u32).is_ok()
}

/// Index of an interface of the calling thread's network namespace.
///
/// # Errors
///
/// [`LinkError::NoInterface`].
pub fn interface_index(name: &str) -> Result<u32, LinkError> {
    let missing = || LinkError::NoInterface {
        interface: name.to_owned(),
    };
    let text = CString::new(name).map_err(|_| missing())?;
    // SAFETY: `text` is a C string that outlives the call.
    match unsafe { libc::if_nametoindex(text.as_ptr()) } {
        0 => Err(missing()),
        index => Ok(index),
    }
}

/// The pinned links of programs on one interface.
#[derive(Debug)]
pub struct InterfaceLinks {
    pub(super) directory: PathBuf,
    pub(super) interface: String,
    pub(super) index: u32,
}

impl InterfaceLinks {
    /// Links on an interface, pinned in `directory` (on a BPF file system; made when something is attached).
    ///
    /// # Errors
    ///
    /// [`LinkError::NoInterface`].
    pub fn new(directory: &Path, interface: &str) -> Result<Self, LinkError> {
        Ok(Self {
            directory: directory.to_owned(),
            interface: interface.to_owned(),
            index: interface_index(interface)?,
        })
    }

    pub const fn index(&self) -> u32 {
        self.index
    }

    /// Attaches `program_fd` behind the programs of others by the link pinned under the name `program`, or replaces the
    /// program that is attached by it, which keeps its place.
    ///
    /// # Errors
    ///
    /// [`LinkError`]; what was attached before stays so.
    pub fn attach(
        &self,
        program: &str,
        program_fd: BorrowedFd<'_>,
        hook: InterfaceHook,
    ) -> Result<Attached, LinkError> {
        make_directory(&self.directory)?;
        let pinned = Pinned {
            program,
            program_fd,
            directory: &self.directory,
        };
        pinned.attach(
            |info| info.interface() == Some((self.index, hook as u32)),
            || {
                sys::link_create_at(program_fd, self.index, hook as u32, BPF_F_AFTER)
                    .map_err(|source| self.refused(program, hook.name(), source))
            },
        )
    }

    /// Ids of the programs that run at the hook by tcx, ours and others', in their order.
    ///
    /// # Errors
    ///
    /// [`LinkError::List`].
    pub fn attached(&self, hook: InterfaceHook) -> Result<Vec<u32>, LinkError> {
        sys::prog_query_at(self.index, hook as u32).map_err(|source| LinkError::List {
            interface: self.interface.clone(),
            source,
        })
    }

    /// Why a program was not attached.
    pub(super) fn refused(&self, program: &str, hook: &'static str, source: io::Error) -> LinkError {
        if source.raw_os_error() == Some(libc::ENODEV) {
            return LinkError::NoInterface {
                interface: self.interface.clone(),
            };
        }
        LinkError::AttachInterface {
            program: program.to_owned(),
            interface: self.interface.clone(),
            hook,
            source,
        }
    }
}
