// SPDX-License-Identifier: Apache-2.0

//! The cell in a hive, on a node of its own with real interfaces and programs.

#![allow(clippy::unwrap_used, reason = "helpers of tests, not only tests, unwrap")]
#![expect(
    clippy::disallowed_methods,
    reason = "servers beside the test are no jobs of a hive"
)]

mod devices;
mod direct;
mod endpoints;
mod interrupted;
mod kernel;
mod traffic;
mod tunnel;
mod world;
