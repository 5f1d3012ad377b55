// SPDX-License-Identifier: Apache-2.0

//! Service load-balancing: tables, writer, reflectors, reconciler and maps.

#[cfg(feature = "api")]
pub mod api;
mod cell;
mod command;
mod config;
pub mod convert;
mod hash;
pub mod maps;
mod node;
pub mod reconciler;
pub mod reflector;
mod row;
mod selection;
mod table;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
pub mod types;
mod writer;

pub use cell::{cell, config_cell, in_memory_cell, testing_cell};
pub use config::{
    Algorithm, Config, DefaultIpam, Families, KubeProxyReplacement, Mode, PortRange, SettingError,
};
pub use node::{AddressTable, Addresses, NoAddresses, NodeAddresses};
pub use selection::{ChooseAll, ClusterAffinity, NodeFacts, SecondChoice};
pub use table::{
    BACKENDS_BY_ADDRESS, BACKENDS_BY_KEY, BackendKey, FRONTENDS_BY_ADDRESS, FRONTENDS_BY_SERVICE,
    SERVICES_BY_NAME, Tables,
};
pub use types::{
    Backend, BackendParams, BackendSet, BackendState, Frontend, FrontendKind, FrontendParams, L3n4Addr,
    L4Proto, Scope, Service, ServiceName, Source,
};
pub use writer::{Writer, WriterError, WriterSettings};

hive::catalogue!(cell);
hive::catalogue!(in_memory_cell);
