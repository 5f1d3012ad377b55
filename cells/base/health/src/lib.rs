// SPDX-License-Identifier: Apache-2.0

//! Health of all modules as a table.
//!
//! Every module and job of a hive reports its health through [`hive::Health`]. The [`cell()`] keeps the reports in the
//! table `health` ([`Status`]), where commands, the API and tests read them. [`history_cell`] also writes what went
//! wrong to a small file, because a component that is closed leaves the table.

mod cell;
mod command;
mod history;
mod metrics;
mod status;
mod table;
#[cfg(feature = "testing")]
pub mod testing;
mod tree;

pub use cell::{HistoryConfig, cell, history_cell};
pub use history::{History, HistoryError};
pub use metrics::HealthMetrics;
pub use status::{LevelName, Status, StatusId, never};
pub use table::{BY_IDENTIFIER, BY_LEVEL, HealthTable};
pub use tree::tree;

hive::catalogue!(cell);
hive::catalogue!(history_cell);

#[cfg(test)]
mod tests;
