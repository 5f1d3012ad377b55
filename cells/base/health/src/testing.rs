// SPDX-License-Identifier: Apache-2.0

//! Script suites `health` and `hive`, and the cells that the hives of most suites start with.

mod health;
mod hive;

use ::hive::Cell;

/// Tables, metrics and health with their commands: the cells that every program has.
pub fn base_cells() -> [Cell; 3] {
    [statedb::cell(), skep_base_metrics::cell(), crate::cell()]
}
