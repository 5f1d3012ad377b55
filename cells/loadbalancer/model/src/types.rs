// SPDX-License-Identifier: Apache-2.0

//! What services, frontends and backends are.
//!
//! Rows are immutable and share what they can: names and lists are reference counted, sets of backends share their
//! chunks, so that a hundred thousand rows stay small and a change copies little.

mod address;
pub mod annotation;
mod backend;
mod backend_set;
mod frontend;
mod protocol;
mod service;
mod service_name;
mod source;
mod strings;

pub use address::{ADDRESS_KEY_LEN, AddressError, L3n4Addr};
pub use backend::{Backend, BackendParams, BackendState, DEFAULT_WEIGHT};
pub use backend_set::{BackendRow, BackendSet, Change, Diff, Iter};
pub use frontend::{Frontend, FrontendKind, FrontendParams, ServiceRow};
pub use protocol::{L4Proto, Scope, UnknownProtocol};
pub use service::{
    BackendZone, ForwardingMode, LbAlgorithm, NatPolicy, ProxyRedirect, Service, SourceRangesPolicy,
    TrafficDistribution, TrafficPolicy,
};
pub use service_name::{ServiceName, ServiceNameError};
pub use source::{SOURCE_COUNT, Source};
pub use strings::{Names, StringMap};
