// SPDX-License-Identifier: Apache-2.0

//! The maps in memory, with the limits of the real ones.

use skep_bpf_maps::lb::{DEFAULT_LB_MAP_MAX, LbMapSizes, OWNER};
use skep_datapath_maps::{MapOwner, Maps};

use super::bpf::BpfMaps;
use super::{Entries, Failures, Keys, LbMaps, MapEntry, MapError, MapKind};

/// The same handles on maps in memory. Full ones refuse new keys as the kernel does.
#[derive(Debug)]
pub struct FakeMaps(BpfMaps);

impl FakeMaps {
    /// Empty maps with the given limits.
    ///
    /// # Panics
    ///
    /// If a limit is 0: the kernel makes no such map.
    pub fn new(sizes: LbMapSizes) -> Self {
        let maps = Maps::in_memory([MapOwner::new(OWNER).sizes(sizes)]).expect("limits larger than 0");
        Self(BpfMaps::new(&maps))
    }
}

/// As many entries as by default, and the smallest Maglev tables.
impl Default for FakeMaps {
    fn default() -> Self {
        Self::new(LbMapSizes::small(DEFAULT_LB_MAP_MAX))
    }
}

impl LbMaps for FakeMaps {
    fn update(&self, entries: Entries<'_>) -> Failures {
        self.0.update(entries)
    }

    fn delete(&self, keys: Keys<'_>) -> Failures {
        self.0.delete(keys)
    }

    fn dump(&self, kind: MapKind, visit: &mut dyn FnMut(MapEntry)) -> Result<(), MapError> {
        self.0.dump(kind, visit)
    }
}
