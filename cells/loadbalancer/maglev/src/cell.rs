// SPDX-License-Identifier: Apache-2.0

//! Cell: lookup tables as configured. Requires: the settings of `skep_base_settings`. Provides: [`Maglev`].

use hive::{Cell, Cfg};
use skep_base_settings::MaglevConfig;

use crate::Maglev;

/// Provides the [`Maglev`] that builds lookup tables as configured.
pub fn cell() -> Cell {
    Cell::module("maglev", "Maglev lookup tables").provide(configured)
}

fn configured(config: Cfg<MaglevConfig>) -> Maglev {
    Maglev::new(config.table_size, config.hash_seed)
}
