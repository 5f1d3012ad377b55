// SPDX-License-Identifier: Apache-2.0

//! The programs that see packets: at interfaces of pods and of the node.

use std::{
    mem::MaybeUninit,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
};

use libbpf_rs::skel::{OpenSkel as _, Skel as _, SkelBuilder as _};

use super::{
    object::{IpFamilies, LoadError, keep, logged, share},
    options::{NodeOptions, raw_options},
    skeleton::packets::TcDatapathSkelBuilder,
};
use skep_bpf_maps::MapSizes;
use skep_bpf_sys::store::MapStore;

const OBJECT: &str = "tc_datapath";

/// Names of the programs; one of each serves all interfaces.
pub const PACKET_PROGRAMS: [&str; 5] = [
    "cil_from_container",
    "cil_from_netdev",
    "cil_to_netdev",
    "cil_from_host",
    "cil_to_host",
];

/// The loaded programs.
#[derive(Debug)]
pub struct Packets {
    programs: Vec<(&'static str, OwnedFd)>,
}

impl Packets {
    /// Loads the programs, with the maps of `store` (made if missing). Nothing is attached yet.
    ///
    /// # Errors
    ///
    /// [`LoadError`] names the map, or has the verifier's log.
    pub fn load(
        store: &MapStore,
        sizes: impl Into<MapSizes>,
        options: &NodeOptions,
    ) -> Result<Self, LoadError> {
        let mut storage = MaybeUninit::uninit();
        let mut open = TcDatapathSkelBuilder::default()
            .open(&mut storage)
            .map_err(|source| LoadError::Open {
                object: OBJECT,
                source,
            })?;
        if let Some(rodata) = open.maps.rodata_data.as_deref_mut() {
            let values = options.values(OBJECT)?;
            raw_options!(super::skeleton::packets::types, &values, &mut rodata.options);
        }
        let ip = IpFamilies::of(options);
        share(OBJECT, open.open_object_mut(), store, &sizes.into(), ip)?;
        let skeleton = logged(OBJECT, || open.load())?;
        let mut programs = Vec::new();
        for name in PACKET_PROGRAMS {
            programs.push((name, keep(OBJECT, skeleton.object(), name)?));
        }
        Ok(Self { programs })
    }

    /// The program of this name.
    pub fn program(&self, name: &str) -> Option<BorrowedFd<'_>> {
        let found = self.programs.iter().find(|(known, _)| *known == name);
        found.map(|(_, fd)| fd.as_fd())
    }
}
