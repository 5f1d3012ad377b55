// SPDX-License-Identifier: Apache-2.0

//! The operator: a list of cells.

mod cells;
#[cfg(test)]
mod cilium;
mod command;
mod kvstore;
mod leader;
mod mesh;
mod metrics;
mod unsupported;

pub use cells::cells;
pub use command::command;
