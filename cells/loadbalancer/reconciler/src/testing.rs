// SPDX-License-Identifier: Apache-2.0

//! What tests add to the reconciler: commands, maps that fail, copies of the maps' content.

mod command;
mod faulty;
pub mod snapshot;

use hive::{Cell, Cfg};
use skep_bpf_sys::map::Faults;

pub use self::faulty::{decorated, with_faults};
use crate::SharedOps;

/// Settings for tests.
#[derive(Debug, Clone, hive::Config)]
pub struct TestConfig {
    /// Probability with which an operation of the reconciler on a map fails, 0 to 1.
    #[config(default = 0.1, flag = "lb-test-fault-probability")]
    pub fault_probability: f64,
    /// Seed of the faults, printed with the first; 0: another one each time.
    #[config(default = 0, flag = "lb-test-fault-seed")]
    pub fault_seed: u64,
}

/// Commands for tests, and faults below the reconciler; add it to one of the cells with maps.
pub fn testing_cell() -> Cell {
    let commands = Cell::module("loadbalancer-testing", "Commands for tests").provide(command::commands);
    Cell::group([commands]).config::<TestConfig>().decorate(decorate)
}

// Only the reconciler meets the faults; commands that look into the maps do not.
fn decorate(ops: SharedOps, test: Cfg<TestConfig>) -> SharedOps {
    if test.fault_probability > 0.0 {
        let seed = match test.fault_seed {
            0 => rand::random(),
            seed => seed,
        };
        let faults = Faults::new("load-balancing maps", test.fault_probability, seed);
        ops.lock().wrap_maps(|maps| with_faults(maps, &faults));
    }
    ops
}
