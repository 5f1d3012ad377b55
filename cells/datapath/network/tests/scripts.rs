// SPDX-License-Identifier: Apache-2.0

//! The scripts of this crate's suites, each a test.

use skep_datapath_network as _;

fn main() -> std::process::ExitCode {
    hive_script::testing::run_tests(env!("CARGO_PKG_NAME"))
}
