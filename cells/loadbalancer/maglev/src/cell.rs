// SPDX-License-Identifier: Apache-2.0

//! Cell: the settings of lookup tables. Provides: [`Maglev`]. Requires nothing.

use crate::{Config, Maglev};
use hive::{Cell, Cfg};

/// Provides the [`Maglev`] that builds lookup tables as configured.
pub fn cell() -> Cell {
    Cell::module("maglev", "Maglev lookup tables")
        .config::<Config>()
        .provide(configured)
}

fn configured(config: Cfg<Config>) -> Maglev {
    Maglev::new(config.table_size, config.hash_seed)
}
