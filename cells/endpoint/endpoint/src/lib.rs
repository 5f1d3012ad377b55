// SPDX-License-Identifier: Apache-2.0

//! Endpoints of this node: the interfaces of pods that the datapath serves.
//!
//! Table `endpoints` has a row for each. [`Endpoints`] is its one writer: it allocates ids, and refuses what another
//! endpoint has. When its policy is realized, the reconciler writes a row, in this order, to its file in the state directory,
//! `skep_endpoints`, the hooks at its interface, and `cilium_lxc`, from which on other programs deliver to it, and routes to
//! its interface if it has its own; an endpoint that is [disconnecting](Phase::Disconnecting) is taken down the other way round. Nothing is removed from the maps that
//! no row stands for until the endpoints of the run before are restored.
//!
//! - Identities: the agent allocates none yet. A new endpoint has identity `reserved:init`; a restored one keeps what its
//!   file says. The ipcache says so of its addresses, as of a local endpoint.
//! - Policies: `skep-policy-maps` writes them. An endpoint requests its policy with its identity, and knows the revision that
//!   is realized, and the directions in which programs look nothing up.
//!
//! Feature `api`: `/v1/endpoint` of the agent's API. Feature `cookies`: cookies of network namespaces for redirect policies.
//!
//! Read first: `endpoint.rs`, then `writer.rs` and `reconciler.rs`.

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
mod host;
mod identifier;
mod interfaces;
mod mac;
mod maps;
mod metrics;
mod policies;
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
pub use endpoint::{Endpoint, EndpointSpec, EndpointState, Phase};
pub use identifier::{Identifier, IdentifierError};
pub use interfaces::{Interfaces, KernelInterfaces};
pub use mac::{Mac, MacError};
pub use maps::EndpointMaps;
pub use metrics::EndpointMetrics;
pub use reconciler::EndpointOps;
pub use state_dir::{StateDir, StateError};
pub use writer::{CreateError, Endpoints, WaitError};

hive::catalogue!(cell);
