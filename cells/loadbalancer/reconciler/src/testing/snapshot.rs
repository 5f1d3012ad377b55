// SPDX-License-Identifier: Apache-2.0

//! Copies of the maps' content in memory, to be written back later: a stand-in for maps that outlive an agent.

use skep_loadbalancer_model::types::L4Proto;

use crate::maps::{Entries, LbMaps, MapEntry, MapError, MapKind};

/// Content of the service, backend, reverse NAT, affinity and source range maps.
#[derive(Clone, Debug, Default)]
pub struct MapSnapshot {
    entries: Vec<MapEntry>,
}

impl MapSnapshot {
    /// Adds what is in the maps now.
    ///
    /// # Errors
    /// If a map cannot be read.
    pub fn take(&mut self, maps: &dyn LbMaps) -> Result<(), MapError> {
        for kind in MapKind::ALL.into_iter().filter(|kind| *kind != MapKind::Maglev) {
            maps.dump(kind, &mut |entry| self.entries.push(entry))?;
        }
        Ok(())
    }

    /// Writes everything back without clearing the maps first. With `any_proto`, services and backends get
    /// protocol `ANY`, as versions without protocol support wrote them.
    ///
    /// # Errors
    /// The first entry that cannot be written.
    pub fn restore(&self, maps: &dyn LbMaps, any_proto: bool) -> Result<(), MapError> {
        for entry in &self.entries {
            let failures = match entry.clone() {
                MapEntry::Service(mut key, value) => {
                    if any_proto {
                        key.address = key.address.with_proto(L4Proto::Any);
                    }
                    maps.update(Entries::Services(&[(key, value)]))
                }
                MapEntry::Backend(key, mut value) => {
                    if any_proto {
                        value.address = value.address.with_proto(L4Proto::Any);
                    }
                    maps.update(Entries::Backends(&[(key, value)]))
                }
                MapEntry::ReverseNat(key, value) => maps.update(Entries::ReverseNat(&[(key, value)])),
                MapEntry::AffinityMatch(key) => maps.update(Entries::AffinityMatch(&[key])),
                MapEntry::SourceRange(key) => maps.update(Entries::SourceRange(&[key])),
                MapEntry::Maglev(key, table) => maps.update(Entries::Maglev(&[(key, table)])),
            };
            if let Some((_, error)) = failures.into_iter().next() {
                return Err(error);
            }
        }
        Ok(())
    }
}
