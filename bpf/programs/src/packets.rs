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
};
use skep_bpf_maps::MapSizes;
use skep_bpf_sys::store::MapStore;

/// Names of the tc programs; one of each serves all interfaces.
pub const PACKET_PROGRAMS: [&str; 6] = [
    "cil_from_container",
    "cil_to_container",
    "cil_from_netdev",
    "cil_to_netdev",
    "cil_from_host",
    "cil_to_host",
];

/// Names of the tc programs at the interface of the tunnel.
pub const OVERLAY_PROGRAMS: [&str; 2] = ["cil_from_overlay", "cil_to_overlay"];

/// Name of the XDP program.
pub const XDP_PROGRAM: &str = "cil_xdp_entry";

/// The loaded programs of one object.
#[derive(Debug)]
pub struct Packets {
    programs: Vec<(&'static str, OwnedFd)>,
}

/// Loads the programs of an object whose skeleton is a module of [`super::skeleton`].
macro_rules! load {
    ($object:literal, $skeleton:ident::$builder:ident, $programs:expr, $store:expr, $sizes:expr, $options:expr) => {{
        const OBJECT: &str = $object;
        let options: &NodeOptions = $options;
        let mut storage = MaybeUninit::uninit();
        let mut open = super::skeleton::$skeleton::$builder::default()
            .open(&mut storage)
            .map_err(|source| LoadError::Open {
                object: OBJECT,
                source,
            })?;
        if let Some(rodata) = open.maps.rodata_data.as_deref_mut() {
            let values = options.values(OBJECT)?;
            raw_options!(super::skeleton::$skeleton::types, &values, &mut rodata.options);
        }
        let ip = IpFamilies::of(options);
        share(OBJECT, open.open_object_mut(), $store, $sizes, ip)?;
        let skeleton = logged(OBJECT, || open.load())?;
        let mut programs = Vec::new();
        for name in $programs {
            programs.push((name, keep(OBJECT, skeleton.object(), name)?));
        }
        Ok(Packets { programs })
    }};
}

impl Packets {
    /// Loads the tc programs, with the maps of `store` (made if missing). Nothing is attached yet.
    ///
    /// # Errors
    ///
    /// [`LoadError`] names the map, or has the verifier's log.
    pub fn load(
        store: &MapStore,
        sizes: impl Into<MapSizes>,
        options: &NodeOptions,
    ) -> Result<Self, LoadError> {
        load!(
            "tc_datapath",
            packets::TcDatapathSkelBuilder,
            PACKET_PROGRAMS,
            store,
            &sizes.into(),
            options
        )
    }

    /// Loads the programs at the interface of the tunnel, as [`Packets::load`].
    ///
    /// # Errors
    ///
    /// As [`Packets::load`].
    pub fn load_overlay(
        store: &MapStore,
        sizes: impl Into<MapSizes>,
        options: &NodeOptions,
    ) -> Result<Self, LoadError> {
        load!(
            "tc_overlay",
            overlay::TcOverlaySkelBuilder,
            OVERLAY_PROGRAMS,
            store,
            &sizes.into(),
            options
        )
    }

    /// Loads the XDP program, as [`Packets::load`]. It leaves to the tc programs of the same interface what it does not
    /// do itself.
    ///
    /// # Errors
    ///
    /// As [`Packets::load`].
    pub fn load_xdp(
        store: &MapStore,
        sizes: impl Into<MapSizes>,
        options: &NodeOptions,
    ) -> Result<Self, LoadError> {
        load!(
            "xdp_datapath",
            xdp::XdpDatapathSkelBuilder,
            [XDP_PROGRAM],
            store,
            &sizes.into(),
            options
        )
    }

    /// The program of this name.
    pub fn program(&self, name: &str) -> Option<BorrowedFd<'_>> {
        let found = self.programs.iter().find(|(known, _)| *known == name);
        found.map(|(_, fd)| fd.as_fd())
    }
}
