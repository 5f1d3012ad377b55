// SPDX-License-Identifier: Apache-2.0

//! The socket load-balancing programs.

use std::{
    mem::MaybeUninit,
    os::fd::{AsFd as _, OwnedFd},
    path::Path,
};

use libbpf_rs::{
    OpenObject,
    skel::{OpenSkel as _, Skel as _, SkelBuilder as _},
};

use super::{
    error::LoadError,
    object::{IpFamilies, keep, logged, prepare, share},
    options::{NodeOptions, raw_options},
    skeleton::socketlb::{CgroupSocketlbSkelBuilder, OpenCgroupSocketlbSkel},
};
use skep_bpf_maps::MapSizes;
use skep_bpf_sys::{
    link::{Attached, CgroupHook, CgroupLinks, LinkError, detach},
    store::MapStore,
};

const OBJECT: &str = "cgroup_socketlb";

/// One program of the object. Its name is the name of its pinned link, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SocketProgram {
    /// Name of the program and of its link.
    pub name: &'static str,
    pub hook: CgroupHook,
    /// For IPv6 sockets.
    pub is_ipv6: bool,
}

const fn program(name: &'static str, hook: CgroupHook, is_ipv6: bool) -> SocketProgram {
    SocketProgram { name, hook, is_ipv6 }
}

/// All programs in the order they are attached: those that translate back come first, so that no socket
/// is ever sent to a backend without a way back. Detached in the opposite order.
pub const SOCKET_PROGRAMS: [SocketProgram; 13] = [
    program("cil_sock_release", CgroupHook::SockRelease, false),
    program("cil_sock4_recvmsg", CgroupHook::Recvmsg4, false),
    program("cil_sock6_recvmsg", CgroupHook::Recvmsg6, true),
    program("cil_sock4_getpeername", CgroupHook::GetPeerName4, false),
    program("cil_sock6_getpeername", CgroupHook::GetPeerName6, true),
    program("cil_sock4_post_bind", CgroupHook::PostBind4, false),
    program("cil_sock6_post_bind", CgroupHook::PostBind6, true),
    program("cil_sock4_pre_bind", CgroupHook::Bind4, false),
    program("cil_sock6_pre_bind", CgroupHook::Bind6, true),
    program("cil_sock4_sendmsg", CgroupHook::Sendmsg4, false),
    program("cil_sock6_sendmsg", CgroupHook::Sendmsg6, true),
    program("cil_sock4_connect", CgroupHook::Connect4, false),
    program("cil_sock6_connect", CgroupHook::Connect6, true),
];

/// The loaded programs, ready to be attached.
#[derive(Debug)]
pub struct SocketLb {
    programs: Vec<(SocketProgram, OwnedFd)>,
}

impl SocketLb {
    /// Loads the programs for which `wanted` is true, with the maps of `store` (made if missing).
    ///
    /// Maps of a switched-off address family are not pinned. Nothing is attached yet.
    ///
    /// # Errors
    ///
    /// [`LoadError`] names the map, or has the verifier's log.
    pub fn load(
        store: &MapStore,
        sizes: impl Into<MapSizes>,
        options: &NodeOptions,
        wanted: impl Fn(&SocketProgram) -> bool,
    ) -> Result<Self, LoadError> {
        let mut storage = MaybeUninit::uninit();
        let mut open = open(&mut storage)?;
        if let Some(rodata) = open.maps.rodata_data.as_deref_mut() {
            let values = options.values(OBJECT)?;
            raw_options!(super::skeleton::socketlb::types, &values, &mut rodata.options);
        }
        share(
            OBJECT,
            open.open_object_mut(),
            store,
            &sizes.into(),
            IpFamilies::of(options),
        )?;
        let loaded = |name: &str| {
            SOCKET_PROGRAMS
                .iter()
                .any(|program| program.name == name && wanted(program))
        };
        for mut program in open.open_object_mut().progs_mut() {
            let load = loaded(&program.name().to_string_lossy());
            program.set_autoload(load);
        }
        let skeleton = logged(OBJECT, || open.load())?;

        let mut programs = Vec::new();
        for program in SOCKET_PROGRAMS.into_iter().filter(|program| wanted(program)) {
            programs.push((program, keep(OBJECT, skeleton.object(), program.name)?));
        }
        Ok(Self { programs })
    }

    /// Opens or makes the maps that the programs need, so that [`MapStore::has_pending`] returns whether
    /// loading them now would switch to maps that are still empty.
    ///
    /// # Errors
    ///
    /// [`LoadError::Map`] names the map.
    pub fn prepare(
        store: &MapStore,
        sizes: impl Into<MapSizes>,
        options: &NodeOptions,
    ) -> Result<(), LoadError> {
        let mut storage = MaybeUninit::uninit();
        let mut open = open(&mut storage)?;
        prepare(
            OBJECT,
            open.open_object_mut(),
            store,
            &sizes.into(),
            IpFamilies::of(options),
        )
    }

    pub fn programs(&self) -> impl Iterator<Item = SocketProgram> {
        self.programs.iter().map(|(program, _)| *program)
    }

    /// Attaches every program to the cgroup, or replaces what its link runs; then detaches programs that
    /// are pinned in the same directory but were not loaded.
    ///
    /// # Errors
    ///
    /// [`LinkError`] of the first program that failed; those before it are attached.
    pub fn attach(
        &self,
        links: &CgroupLinks,
        directory: &Path,
    ) -> Result<Vec<(SocketProgram, Attached)>, LinkError> {
        let done = self.attach_only(links)?;
        for stale in SOCKET_PROGRAMS.iter().rev() {
            if !self.programs.iter().any(|(program, _)| program == stale) {
                detach(directory, stale.name)?;
            }
        }
        Ok(done)
    }

    /// Attaches every program to the cgroup, or replaces what its link runs; leaves all other links alone.
    ///
    /// # Errors
    ///
    /// [`LinkError`] of the first program that failed; those before it are attached.
    pub fn attach_only(&self, links: &CgroupLinks) -> Result<Vec<(SocketProgram, Attached)>, LinkError> {
        let attach = |(program, fd): &(SocketProgram, OwnedFd)| {
            Ok((*program, links.attach(program.name, fd.as_fd(), program.hook)?))
        };
        self.programs.iter().map(attach).collect()
    }

    /// Detaches all socket programs whose links are pinned in `directory`; returns how many there were.
    ///
    /// # Errors
    ///
    /// [`LinkError::Unpin`] if a pin cannot be removed.
    pub fn detach_all(directory: &Path) -> Result<usize, LinkError> {
        let mut detached = 0;
        for program in SOCKET_PROGRAMS.iter().rev() {
            detached += usize::from(detach(directory, program.name)?);
        }
        Ok(detached)
    }
}

fn open(storage: &mut MaybeUninit<OpenObject>) -> Result<OpenCgroupSocketlbSkel<'_>, LoadError> {
    CgroupSocketlbSkelBuilder::default()
        .open(storage)
        .map_err(|source| LoadError::Open {
            object: OBJECT,
            source,
        })
}
