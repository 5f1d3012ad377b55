// SPDX-License-Identifier: Apache-2.0

//! The operator: a list of cells.

mod cells;
#[cfg(test)]
mod cilium;
mod kvstore;
mod leader;
mod unsupported;

pub use cells::cells;
