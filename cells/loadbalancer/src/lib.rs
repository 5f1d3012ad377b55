// SPDX-License-Identifier: Apache-2.0

//! Service load-balancing: tables, writer, reflectors, reconciler and maps.

pub mod convert;
pub mod maps;
pub mod reconciler;
pub mod reflector;
#[cfg(test)]
mod testing;
pub mod types;

pub use types::{
    Backend, BackendParams, BackendSet, BackendState, Frontend, FrontendKind, FrontendParams, L3n4Addr,
    L4Proto, Scope, Service, ServiceName, Source,
};
