// SPDX-License-Identifier: Apache-2.0

//! The load-balancing maps behind one trait: handles of the map layer, and with faults injected.
//!
//! Writes are batched: one call carries the entries of many frontends, and says which of them failed. Byte layouts
//! are those of [`skep_bpf_maps::lb`]; here addresses and ids are in host order and both families go through one call.

pub mod bpf;
pub mod cell;
mod entry;
pub mod fake;
#[cfg(test)]
mod tests;
pub mod text;

use std::sync::Arc;

pub use entry::{
    AffinityKey, BackendKey, BackendValue, Entries, Keys, MaglevKey, MapEntry, RevNatKey, RevNatValue,
    ServiceKey, SourceRangeKey,
};
use skep_bpf_maps::Family;
use skep_bpf_maps::lb::{
    AFFINITY_MATCH, BACKENDS4, BACKENDS6, MAGLEV4, MAGLEV6, REVERSE_NAT4, REVERSE_NAT6, SERVICES4, SERVICES6,
    SOURCE_RANGE4, SOURCE_RANGE6,
};
pub use skep_bpf_maps::lb::{ServiceFlags, ServiceValue};

/// Kind of a map; there is one for each address family, except for the affinity matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum MapKind {
    /// Service address and slot to backend.
    Services,
    /// Backend id to address.
    Backends,
    /// Service id to address.
    ReverseNat,
    /// Which backends belong to a service with session affinity.
    AffinityMatch,
    /// Client networks of a service.
    SourceRange,
    /// Lookup table of a service.
    Maglev,
}

impl MapKind {
    /// Every kind.
    pub const ALL: [Self; 6] = [
        Self::Services,
        Self::Backends,
        Self::ReverseNat,
        Self::AffinityMatch,
        Self::SourceRange,
        Self::Maglev,
    ];

    /// Name of the pinned map of a family.
    pub fn name(self, ipv6: bool) -> &'static str {
        let family: &Family = match (self, ipv6) {
            (Self::Services, false) => &SERVICES4,
            (Self::Services, true) => &SERVICES6,
            (Self::Backends, false) => &BACKENDS4,
            (Self::Backends, true) => &BACKENDS6,
            (Self::ReverseNat, false) => &REVERSE_NAT4,
            (Self::ReverseNat, true) => &REVERSE_NAT6,
            (Self::AffinityMatch, _) => &AFFINITY_MATCH,
            (Self::SourceRange, false) => &SOURCE_RANGE4,
            (Self::SourceRange, true) => &SOURCE_RANGE6,
            (Self::Maglev, false) => &MAGLEV4,
            (Self::Maglev, true) => &MAGLEV6,
        };
        family.name
    }
}

/// Why an entry could not be written, deleted or read.
#[derive(Clone, Debug, thiserror::Error)]
pub enum MapError {
    /// No room. Raise the limit named after the map (`bpf-lb-*-map-max`), or remove services.
    #[error("map {map} is full ({max} entries)")]
    Full {
        /// Pinned name.
        map: &'static str,
        /// Its size.
        max: u32,
    },
    /// Injected by a test.
    #[error("faulty")]
    Faulty,
    /// The kernel refused.
    #[error("map {map}: {operation} failed")]
    System {
        /// Pinned name.
        map: &'static str,
        /// What was tried.
        operation: &'static str,
        /// What the kernel said.
        #[source]
        cause: Arc<dyn std::error::Error + Send + Sync>,
    },
}

/// Entries of a batch that failed: index and reason, by index.
pub type Failures = Vec<(usize, MapError)>;

/// The maps that the reconciler writes.
pub trait LbMaps: Send + Sync {
    /// Writes entries; existing ones are replaced. An entry that fails does not keep others from being written.
    fn update(&self, entries: Entries<'_>) -> Failures;

    /// Deletes entries; deleting what is absent is success.
    fn delete(&self, keys: Keys<'_>) -> Failures;

    /// Visits every entry of a kind, in no particular order.
    ///
    /// # Errors
    /// If a map cannot be read.
    fn dump(&self, kind: MapKind, visit: &mut dyn FnMut(MapEntry)) -> Result<(), MapError>;
}

/// Every entry of every kind.
///
/// # Errors
/// If a map cannot be read.
pub fn dump_all(maps: &dyn LbMaps) -> Result<Vec<MapEntry>, MapError> {
    let mut entries = Vec::new();
    for kind in MapKind::ALL {
        maps.dump(kind, &mut |entry| entries.push(entry))?;
    }
    Ok(entries)
}
