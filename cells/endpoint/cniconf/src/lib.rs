// SPDX-License-Identifier: Apache-2.0

//! The CNI configuration of this node.
//!
//! [`cell`] writes the file named by `write-cni-conf-when-ready`: rendered for a chaining mode (`render.rs`), merged into
//! the network of another plugin (`chain.rs`), or copied from `read-cni-conf`. Other configurations of the directory are
//! set aside as `*.cilium_bak` with `cni-exclusive`. The file outlives the agent.

mod cell;
mod chain;
mod config;
mod file;
mod render;
#[cfg(test)]
mod tests;

pub use cell::cell;
pub use config::CniConfConfig;

hive::catalogue!(cell);
