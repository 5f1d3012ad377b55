// SPDX-License-Identifier: Apache-2.0

//! The model of service load balancing: services, frontends and backends in tables, and their one writer.
//!
//! Sources fill the tables through [`Writer`]; reconcilers carry them out and write statuses and ids back. Neither is
//! linked here: this crate knows no Kubernetes client, no file format and no BPF map.

#![warn(missing_docs)]

#[cfg(feature = "api")]
pub mod api;
mod cell;
mod config;
pub mod hash;
mod node;
mod row;
mod selection;
mod table;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod types;
mod writer;

pub use cell::{cell, config_cell};
pub use config::Config;
pub use node::{AddressUse, Addresses, NoAddresses, NodeAddresses, NodeFacts};
pub use selection::{AllBackends, BackendFilter, ClusterAffinity};
pub use table::{
    BACKENDS_BY_ADDRESS, BACKENDS_BY_KEY, BackendKey, FRONTENDS_BY_ADDRESS, FRONTENDS_BY_SERVICE,
    KUBERNETES_SERVICES, NODE_FACTS, SERVICES_BY_NAME, Tables,
};
pub use types::{
    Backend, BackendParams, BackendSet, BackendState, Frontend, FrontendKind, FrontendParams, L3n4Addr,
    L4Proto, LbAlgorithm, Scope, Service, ServiceName, Source,
};
pub use writer::{Writer, WriterError, WriterSettings};

hive::catalogue!(cell);
