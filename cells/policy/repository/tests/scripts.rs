// SPDX-License-Identifier: Apache-2.0

//! The scripts of this crate's suite, each a test.

use skep_policy_repository as _;

fn main() -> std::process::ExitCode {
    hive_script::testing::run_tests(env!("CARGO_PKG_NAME"))
}
