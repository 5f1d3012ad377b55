// SPDX-License-Identifier: Apache-2.0

//! Sources of services: the Kubernetes API server, host ports of pods, a state file.

#![warn(missing_docs)]

mod batch;
mod cell;
mod config;
pub mod convert;
mod document;
mod file;
mod k8s;
mod metrics;
mod node;
mod pods;
mod podsource;
mod reflector;
mod slices;
mod waiter;

#[cfg(test)]
mod tests;

pub use batch::{Batch, Event, MAX_BATCH};
pub use cell::{cell, node_cell};
pub use config::{FileConfig, KubernetesConfig};
pub use document::{Document, DocumentError, Format, UnknownFormat};
pub use file::FileError;
pub use metrics::SourceMetrics;
pub use node::LocalAddresses;
pub use reflector::{InvalidObjects, ServiceReflector};

hive::catalogue!(cell);
