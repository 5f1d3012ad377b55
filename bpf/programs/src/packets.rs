// SPDX-License-Identifier: Apache-2.0

//! The programs that see packets: at interfaces of pods and of the node.

use std::{
    mem::MaybeUninit,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
};

use libbpf_rs::skel::{OpenSkel as _, Skel as _, SkelBuilder as _};

use super::{
    error::LoadError,
    object::{IpFamilies, keep, logged, share},
    options::{NodeOptions, raw_options},
};
#[cfg(feature = "count-calls")]
use crate::count::Counter;
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

pub const XDP_PROGRAM: &str = "cil_xdp_entry";

/// The loaded programs of one object.
#[derive(Debug)]
pub struct Packets {
    programs: Vec<(&'static str, OwnedFd)>,
}

/// Loads the programs of an object whose skeleton is a module of [`super::skeleton`]. Returns them, and what is kept of the
/// object besides.
macro_rules! load {
    (
        $object:literal, $skeleton:ident::$builder:ident, $programs:expr, $store:expr, $sizes:expr, $options:expr,
        $loaded:ident => $kept:expr
    ) => {{
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
        let $loaded = logged(OBJECT, || open.load())?;
        let mut programs = Vec::new();
        for name in $programs {
            programs.push((name, keep(OBJECT, $loaded.object(), name)?));
        }
        (Packets { programs }, $kept)
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
        let (packets, ()) = load!(
            "tc_datapath",
            packets::TcDatapathSkelBuilder,
            PACKET_PROGRAMS,
            store,
            &sizes.into(),
            options,
            skeleton => ()
        );
        Ok(packets)
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
        let (packets, ()) = load!(
            "tc_overlay",
            overlay::TcOverlaySkelBuilder,
            OVERLAY_PROGRAMS,
            store,
            &sizes.into(),
            options,
            skeleton => ()
        );
        Ok(packets)
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
        let (packets, ()) = load!(
            "xdp_datapath",
            xdp::XdpDatapathSkelBuilder,
            [XDP_PROGRAM],
            store,
            &sizes.into(),
            options,
            skeleton => ()
        );
        Ok(packets)
    }

    pub fn program(&self, name: &str) -> Option<BorrowedFd<'_>> {
        let found = self.programs.iter().find(|(known, _)| *known == name);
        found.map(|(_, fd)| fd.as_fd())
    }
}

#[cfg(feature = "count-calls")]
impl Packets {
    /// As [`Packets::load`], with counters.
    ///
    /// # Errors
    ///
    /// As [`Packets::load`].
    pub fn load_counted(
        store: &MapStore,
        sizes: MapSizes,
        options: &NodeOptions,
    ) -> Result<(Self, Counter), LoadError> {
        Ok(load!(
            "tc_datapath",
            counted_packets::TcDatapathCountedSkelBuilder,
            PACKET_PROGRAMS,
            store,
            &sizes,
            options,
            skeleton => Counter::new("tc_datapath", &skeleton.maps.bss)?
        ))
    }

    /// As [`Packets::load_overlay`], with counters.
    ///
    /// # Errors
    ///
    /// As [`Packets::load`].
    pub fn load_overlay_counted(
        store: &MapStore,
        sizes: MapSizes,
        options: &NodeOptions,
    ) -> Result<(Self, Counter), LoadError> {
        Ok(load!(
            "tc_overlay",
            counted_overlay::TcOverlayCountedSkelBuilder,
            OVERLAY_PROGRAMS,
            store,
            &sizes,
            options,
            skeleton => Counter::new("tc_overlay", &skeleton.maps.bss)?
        ))
    }

    /// As [`Packets::load_xdp`], with counters.
    ///
    /// # Errors
    ///
    /// As [`Packets::load`].
    pub fn load_xdp_counted(
        store: &MapStore,
        sizes: MapSizes,
        options: &NodeOptions,
    ) -> Result<(Self, Counter), LoadError> {
        Ok(load!(
            "xdp_datapath",
            counted_xdp::XdpDatapathCountedSkelBuilder,
            [XDP_PROGRAM],
            store,
            &sizes,
            options,
            skeleton => Counter::new("xdp_datapath", &skeleton.maps.bss)?
        ))
    }
}
