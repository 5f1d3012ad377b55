// SPDX-License-Identifier: Apache-2.0

//! Fault tests. One program: linking each costs seconds.

mod api;
mod capabilities;
mod connections;
mod interrupted;
mod kubernetes;
mod maps;
mod memory;
mod network_policies;
mod pods;
mod pods_killed;
mod policies;
mod restart;
mod start;
mod state_file;
mod unchanged;
