// SPDX-License-Identifier: Apache-2.0

//! Links of programs on a cgroup.

use std::{
    fs,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::fs::MetadataExt,
    },
    path::{Path, PathBuf},
};

use super::{Attached, LinkError, Pinned, make_directory};
use crate::syscall as sys;

/// Where on a cgroup a program is attached; numbers as in `enum bpf_attach_type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum CgroupHook {
    Bind4 = 8,
    Bind6 = 9,
    Connect4 = 10,
    Connect6 = 11,
    PostBind4 = 12,
    PostBind6 = 13,
    Sendmsg4 = 14,
    Sendmsg6 = 15,
    Recvmsg4 = 19,
    Recvmsg6 = 20,
    GetPeerName4 = 29,
    GetPeerName6 = 30,
    SockRelease = 34,
}

/// The pinned links of one set of programs on one cgroup.
#[derive(Debug)]
pub struct CgroupLinks {
    directory: PathBuf,
    cgroup: PathBuf,
    cgroup_fd: OwnedFd,
    cgroup_id: u64,
}

impl CgroupLinks {
    /// Links on the cgroup at `cgroup`, pinned in `directory` (on a BPF file system; made if missing).
    ///
    /// # Errors
    ///
    /// [`LinkError::Directory`] or [`LinkError::Cgroup`].
    pub fn new(directory: &Path, cgroup: &Path) -> Result<Self, LinkError> {
        let failed = |source| LinkError::Cgroup {
            path: cgroup.to_owned(),
            source,
        };
        make_directory(directory)?;
        let file = fs::File::open(cgroup).map_err(failed)?;
        let cgroup_id = file.metadata().map_err(failed)?.ino();
        Ok(Self {
            directory: directory.to_owned(),
            cgroup: cgroup.to_owned(),
            cgroup_fd: file.into(),
            cgroup_id,
        })
    }

    /// Where the link of a program is pinned.
    pub fn path(&self, program: &str) -> PathBuf {
        self.directory.join(program)
    }

    /// Attaches `program_fd` at `hook` by the link pinned under the name `program`, or replaces the program
    /// that is attached by it.
    ///
    /// # Errors
    ///
    /// [`LinkError`]; what was attached before stays so.
    pub fn attach(
        &self,
        program: &str,
        program_fd: BorrowedFd<'_>,
        hook: CgroupHook,
    ) -> Result<Attached, LinkError> {
        let pinned = Pinned {
            program,
            program_fd,
            directory: &self.directory,
        };
        pinned.attach(
            |info| info.cgroup() == Some((self.cgroup_id, hook as u32)),
            || {
                sys::link_create(program_fd, Some(self.cgroup_fd.as_fd()), hook as u32).map_err(|source| {
                    LinkError::Attach {
                        program: program.to_owned(),
                        cgroup: self.cgroup.clone(),
                        hook,
                        source,
                    }
                })
            },
        )
    }

    /// Ids of all programs attached directly to the cgroup at `hook`, ours and others'.
    ///
    /// # Errors
    ///
    /// [`LinkError::Cgroup`] if the query fails.
    pub fn attached(&self, hook: CgroupHook) -> Result<Vec<u32>, LinkError> {
        sys::prog_query(self.cgroup_fd.as_fd(), hook as u32).map_err(|source| LinkError::Cgroup {
            path: self.cgroup.clone(),
            source,
        })
    }
}
