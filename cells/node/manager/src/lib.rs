// SPDX-License-Identifier: Apache-2.0

//! Nodes of this cluster and of all clusters of the mesh.
//!
//! | input | source |
//! |---|---|
//! | the local node (`skep-node-local`) | `local` |
//! | CiliumNodes | `custom-resource` |
//! | Nodes of Kubernetes | `k8s` |
//! | users of [`NodeManager`]: the mesh, a key-value store | `clustermesh`, `kvstore` |
//!
//! Table `nodes` has a row for each node and source; of several the strongest source says what the node is
//! ([`NodeManager::node`]). From it follow
//!
//! - claims in the ipcache: addresses of nodes, health endpoints and ingress listeners, and the networks of their pods, so
//!   that packets to pods that are not known yet are tunnelled to their node (`claims.rs`);
//! - table `node-ids` and map `cilium_node_map_v2`: an id for each node (`ids.rs`).
//!
//! Claimed here as well are the addresses of this node's devices and the rest of the world (`host.rs`), and those of the API
//! server (`apiserver.rs`). Feature `api`: `GET /v1/node/ids`, `GET /v1/cluster/nodes`.

#[cfg(feature = "api")]
pub mod api;
mod apiserver;
mod cell;
mod claims;
mod convert;
mod host;
mod ids;
mod k8s;
mod local;
mod manager;
mod metrics;
mod node;
mod reflect;
#[cfg(test)]
mod tests;

pub use cell::cell;
pub use ids::NodeId;
pub use manager::NodeManager;
pub use metrics::NodeMetrics;
pub use node::{DEFAULT_CLUSTER, Node, NodeKey};

hive::catalogue!(cell);
