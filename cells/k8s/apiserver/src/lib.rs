// SPDX-License-Identifier: Apache-2.0

//! Kubernetes API server over HTTP, for the lab and for tests of programs; its store and behaviour are
//! `skep-k8s-memory`.
//!
//! - [`HttpServer`]: the API for kubectl and other clients; with a [`PodRuntime`], logs of pods and programs in them. A
//!   request with a token of a service account comes from the account;
//! - [`OpenApiSchemas`]: validation of custom resources by schema and CEL rules;
//! - cells: [`endpointslice_controller_cell`], [`namespace_controller_cell`], [`garbage_collector_cell`].

mod controller;
mod http;
mod pods;
mod print;
mod schema;
#[cfg(feature = "testing")]
pub mod testing;

pub use controller::endpointslice::endpointslice_controller_cell;
pub use controller::garbage::garbage_collector_cell;
pub use controller::namespace::namespace_controller_cell;
pub use http::{HttpOptions, HttpServer};
pub use pods::{ExecOptions, Execution, LogOptions, PodRuntime, PodRuntimeError, TerminalSize};
pub use schema::OpenApiSchemas;

hive::catalogue!(namespace_controller_cell);
hive::catalogue!(garbage_collector_cell);
hive::catalogue!(endpointslice_controller_cell);
