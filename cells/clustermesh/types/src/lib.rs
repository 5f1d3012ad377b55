// SPDX-License-Identifier: Apache-2.0

//! Cluster mesh: the values that clusters share, where they are in the key-value store, and what is checked of them.
//!
//! | value | kind | form |
//! |---|---|---|
//! | [`Node`] | [`Kind::Nodes`] | JSON |
//! | [`ClusterService`] | [`Kind::Services`] | JSON |
//! | [`ClusterEndpointSlice`] | [`Kind::EndpointSlices`] | protocol buffer in a zstd frame |
//! | [`IpIdentityPair`] | [`Kind::Ips`] | JSON |
//! | [`Identity`] | [`Kind::Identities`] | labels |
//! | [`ServiceExport`] | [`Kind::ServiceExports`] | JSON |
//! | [`CiliumClusterConfig`] | [`keys::cluster_config`] | JSON |
//!
//! Values are read and written as Cilium does, so that clusters of both share one mesh. Each `decode` also checks that a value
//! belongs under its key and to the cluster that is read ([`RemoteInfo`]): a remote cluster speaks for itself alone.
//! JSON follows the rules of Go, see [`go_json`].
//!
//! Links no key-value store, no Kubernetes client and no BPF. Feature `hive` adds the settings of service values; feature `script`, with the key-value store, the form of endpoint slices in `kvstore/list`.

mod address;
pub mod annotation;
#[cfg(feature = "script")]
pub mod command;
mod config;
mod endpoint_slice;
mod error;
pub mod go_json;
mod identity;
mod ip;
pub mod keys;
mod node;
mod remote;
mod service;
mod service_export;
#[cfg(feature = "hive")]
mod service_mode;

pub use config::{Capabilities, CiliumClusterConfig, ConfigError, EndpointSlicesExportMode};
pub use endpoint_slice::{
    ClusterEndpointSlice, Conditions, Endpoint, EndpointPort, Hints, NamedHint, SERVICE_NAME_LABEL, TextEntry,
};
pub use error::ValueError;
pub use identity::{CLUSTER_LABEL, Identity, Label};
pub use ip::{IpIdentityPair, NamedPort};
pub use keys::Kind;
pub use node::{Node, NodeAddress};
pub use remote::RemoteInfo;
pub use service::{Addresses, BackendZone, ClusterService, ForZone, Ports, ServicePort};
pub use service_export::{ClientIpConfig, ExportPort, ServiceExport, SessionAffinityConfig};
#[cfg(feature = "hive")]
pub use service_mode::{ServiceMode, ServiceSettings, UnknownMode};
pub use skep_base_settings::{
    MaxConnectedClusters, UnsupportedMax,
    cluster::{ClusterInfo, ClusterInfoError, ClusterName, DEFAULT_NAME, InvalidClusterName, MAX_NAME},
};
