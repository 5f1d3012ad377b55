// SPDX-License-Identifier: Apache-2.0

//! The sub-commands of `skep-clustermesh-apiserver`.
//!
//! Servers are hives: [`hive::Program`] reads their flags, and has `hive` below them. The other sub-commands run once.

#[cfg(test)]
mod cilium;
pub mod clustermesh;
mod clustermesh_dbg;
mod command;
pub mod coredns;
pub mod etcdinit;
pub mod kvstoremesh;
mod kvstoremesh_dbg;
mod server;
mod shell;
mod unsupported;

pub use command::run;

const PROGRAM: &str = "skep-clustermesh-apiserver";
