// SPDX-License-Identifier: Apache-2.0

//! Endpoints of this node: the interfaces of pods that the datapath serves.
//!
//! Table `endpoints` has a row for each. [`Endpoints`] is its one writer: it allocates ids, and refuses what another
//! endpoint has. When its policy is realized, the reconciler writes a row, in this order, to its file in the state directory,
//! `skep_endpoints`, the hooks at its interface, and `cilium_lxc`, from which on other programs deliver to it, and routes to
//! its interface if it has its own; an endpoint that is [disconnecting](Phase::Disconnecting) is taken down the other way round. Nothing is removed from the maps that
//! no row stands for until the endpoints of the run before are restored.
//!
//! - Labels: those of the pod and its namespace, and of the request, by the label filter (`metadata.rs`). Identities are allocated
//!   for them (`identities.rs`); an endpoint without labels has `reserved:init`. A restored one keeps the identity of its file
//!   until then. The ipcache has the identity for its addresses, as of a local endpoint.
//! - Addresses: allocated by IPAM before; those of restored endpoints are allocated again, those of deleted ones released
//!   (`addresses.rs`). Until then, and until queued deletions are done (`queue.rs`), no endpoint is created.
//! - Policies: `skep-policy-maps` writes them. An endpoint requests its policy with its identity, and knows the revision that
//!   is realized, and the directions in which programs look nothing up.
//! - DNS names: those that an endpoint looked up, and its DNS rules, are in its file (`names.rs`); restored before it is.
//! - The node: an endpoint without maps and hooks, with the labels of the Node (`host_endpoint.rs`).
//! - The listener of Ingresses: an endpoint without interface, at the addresses that IPAM allocated for it (`ingress_endpoint.rs`).
//!
//! Feature `api`: `/v1/endpoint` of the agent's API. Feature `cookies`: cookies of network namespaces for redirect policies.
//!
//! Read first: `endpoint.rs`, then `writer.rs` and `reconciler.rs`.

mod addresses;
#[cfg(feature = "api")]
pub mod api;
mod cell;
mod claims;
mod collect;
mod config;
#[cfg(feature = "cookies")]
pub mod cookies;
mod datapath;
mod endpoint;
mod events;
mod host;
mod host_endpoint;
mod identifier;
mod identities;
mod ingress_endpoint;
mod interfaces;
mod labels;
mod log;
mod mac;
mod maps;
mod metadata;
mod metrics;
mod names;
mod options;
mod pod;
mod policies;
mod queue;
mod reconciler;
mod restore;
mod state_dir;
#[cfg(test)]
mod tests;
mod unreachable;
mod writer;

pub use cell::cell;
pub use config::Config;
pub use datapath::{DatapathConfiguration, EndpointRoutes, EndpointRouting, KernelRoutes};
pub use endpoint::{Endpoint, EndpointSpec, EndpointState, Phase, RegenerationReason};
pub use identifier::{Identifier, IdentifierError};
pub use interfaces::{Interfaces, KernelInterfaces};
pub use labels::EndpointLabels;
pub use log::{LogEntry, StatusCode, StatusLog};
pub use mac::{Mac, MacError};
pub use maps::EndpointMaps;
pub use metadata::MetadataResolver;
pub use metrics::EndpointMetrics;
pub use options::{EndpointOptions, OptionError};
pub use pod::{BandwidthAnnotations, EndpointPod, NamedPort};
pub use reconciler::EndpointOps;
pub use state_dir::{StateDir, StateError};
pub use writer::{CreateError, Endpoints, WaitError};

hive::catalogue!(cell);
