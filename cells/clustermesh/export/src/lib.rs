// SPDX-License-Identifier: Apache-2.0

//! Cluster mesh: publishes the state of this cluster in the key-value store, where other clusters read it.
//!
//! Cells for clustermesh-apiserver, some of them also for an operator; each is one kind of values with its canary:
//!
//! | cell | from | to |
//! |---|---|---|
//! | [`services`] | Services and EndpointSlices that are global and shared | `services/v1` |
//! | [`slices`] | EndpointSlices of such services | `endpointslices/v1` |
//! | [`service_exports`] | ServiceExports, if the MCS-API is enabled | `serviceexports/v1` |
//! | [`nodes`] | CiliumNodes | `nodes/v1` |
//! | [`identities`] | CiliumIdentities | `identities/v1` |
//! | [`endpoints`] | CiliumEndpoints or CiliumEndpointSlices | `ip/v1` |
//! | [`cluster_config`] | settings | `cluster-config` |
//!
//! [`tables::cell`] provides the objects as tables. What is published of a name is a function of their rows, whatever the
//! order of events was: an event that is late or repeated changes nothing. A canary is written when all objects of the
//! first lists are, and what a former program left behind is deleted.
//!
//! Feature `script` adds `command`, endpoint slices as JSON in commands; feature `suites` the script suite `clustermesh-apiserver`.

pub mod cluster_config;
pub mod endpoints;
mod exporter;
pub mod identities;
mod namespaces;
pub mod nodes;
mod objects;
mod parts;
pub mod service_exports;
pub mod services;
mod settings;
pub mod slices;
mod source;
#[cfg(feature = "suites")]
mod suite;
pub mod tables;

pub use exporter::Exported;
pub use settings::ExportSettings;
