// SPDX-License-Identifier: Apache-2.0

//! Frontends into maps: ids, slots, and the order of writes.
//!
//! [`Ops`] is the machine: frontends and map operations, no tables and no tasks. [`FrontendReconciler`] drives it from
//! the table.

#![warn(missing_docs)]

mod capacity;
mod cell;
mod command;
mod driver;
mod error;
mod families;
mod ids;
pub mod maps;
pub mod neighbors;
mod ops;
mod restore;
mod select;
mod settings;
mod slots;
pub mod sockets;
mod stage;
mod state;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;

pub use cell::{cell, in_memory};
pub use driver::{FrontendOps, FrontendReconciler, InitWait, SharedOps, Timing};
pub use error::ReconcileError;
pub use families::Embedding;
pub use ops::{FrontendResult, Ops};
pub use restore::Summary;
pub use settings::Settings;

hive::catalogue!(cell);
