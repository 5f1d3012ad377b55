// SPDX-License-Identifier: Apache-2.0

//! Endpoints through the writer into files, maps and hooks; restarts and faults in between.

#![expect(
    clippy::disallowed_methods,
    reason = "what runs beside the test is no job of a hive"
)]

mod faults;
pub(crate) mod hive;
mod ingress;
mod life;
mod restore;
mod routes;
mod unreachable;
pub(crate) mod world;
