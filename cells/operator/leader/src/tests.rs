// SPDX-License-Identifier: Apache-2.0

//! Elections against the embedded API server, with a paused clock.

mod cells;
mod config;
mod faults;
mod leases;
mod world;
