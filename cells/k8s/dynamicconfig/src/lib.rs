// SPDX-License-Identifier: Apache-2.0

//! The agent's configuration as it is in the cluster now.
//!
//! - [`cell()`]: ConfigMaps, CiliumNodeConfigs and annotations of the node as table `cilium-configs`;
//! - [`ConfigEntry`]: a row: a key, where it is from, its priority and value; [`effective`] is the row that counts.
//!
//! The agent itself runs with what it read at its start: [`build`] writes it before that.

pub mod build;
mod cell;
mod config;
mod object;
mod row;
#[cfg(feature = "testing")]
mod suite;
mod watch;

pub use cell::cell;
pub use config::{Config, Overrides, Source, SourceKind, SourcesError};
pub use row::{ConfigEntry, effective};

hive::catalogue!(cell);

#[cfg(test)]
mod tests;
