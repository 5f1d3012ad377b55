// SPDX-License-Identifier: Apache-2.0

//! The maps of the datapath.
//!
//! [`cell`] provides the store of pinned maps on a BPF file system that is found or mounted, and claims it for this
//! process. It builds without clang and libbpf: who loads programs provides [`FieldNames`], so that tools which dump
//! new maps show the names of their fields.

mod cell;
mod config;
mod sizes;

pub use cell::{FieldNames, PinCheck, cell};
pub use config::Config;
pub use sizes::lb_map_sizes;

hive::catalogue!(cell);
