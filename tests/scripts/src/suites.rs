// SPDX-License-Identifier: Apache-2.0

//! The table of suites. A new one is a module here and a line in [`all`].

mod health;
mod hive;
mod metrics;
mod statedb;

use crate::Suite;

/// All suites.
pub fn all() -> &'static [Suite] {
    static ALL: [Suite; 4] = [health::SUITE, hive::SUITE, metrics::SUITE, statedb::SUITE];
    &ALL
}

/// The suite of this name.
pub fn find(name: &str) -> Option<&'static Suite> {
    all().iter().find(|suite| suite.name == name)
}
