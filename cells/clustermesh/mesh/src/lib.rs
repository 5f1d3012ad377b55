// SPDX-License-Identifier: Apache-2.0

//! Cluster mesh: reads the state of remote clusters, and passes it to observers.
//!
//! - [`ClusterMesh`] follows the directory of configurations, one file a remote cluster, and connects to each of them;
//!   it has their [status](RemoteClusterStatus), and waits until they are [synced](ClusterMesh::wait_synced).
//! - [`MeshObserver`]s are the plug-in point: one for each kind of values, members of a group. [`observe`] makes one of a
//!   [`ValueObserver`], which gets values that were decoded and checked.
//! - [`Connector`] makes the connection to a cluster; [`EtcdConnector`] by etcd's configuration files.
//! - Observers of the agent, each behind a feature of its name: `services`, remote services as backends of the load balancer;
//!   `nodes` in the node manager; addresses in the `ipcache`; `identities` as a table.
//! - `resolver`, behind a feature of its name, finds etcd by the name of a Service.
//! - `troubleshoot`, behind a feature of its name, checks connections to remote clusters from their configuration files.
//! - [`ClusterLifecycle`] is for programs that copy clusters: they make a mesh with [`ClusterMesh::new`] and do without the
//!   [`cell`](cell()).
//!
//! What is read of a cluster stays when the connection is lost, and is compared after the reconnect. It goes when the
//! configuration of the cluster is removed; that of the load balancer also after `clustermesh-cache-ttl`. A remote cluster
//! speaks for itself alone: names, ids and identities that are not its own are rejected one by one, and each cluster has its
//! own connection, job, back-off and health.

#[cfg(any(
    feature = "identities",
    feature = "ipcache",
    feature = "nodes",
    feature = "services"
))]
mod batch;
mod cell;
#[cfg(any(
    feature = "identities",
    feature = "ipcache",
    feature = "nodes",
    feature = "services"
))]
mod complete;
mod connector;
mod directory;
mod error;
#[cfg(feature = "identities")]
pub mod identities;
#[cfg(feature = "ipcache")]
pub mod ipcache;
mod lifecycle;
mod mesh;
mod metrics;
#[cfg(feature = "nodes")]
pub mod nodes;
mod observer;
mod remote;
mod reservation;
#[cfg(feature = "resolver")]
pub mod resolver;
#[cfg(feature = "services")]
pub mod services;
mod settings;
mod state;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(feature = "troubleshoot")]
pub mod troubleshoot;

pub use cell::{cell, operator_cell};
pub use connector::{Connector, EtcdConnector};
pub use directory::ConfigFile;
pub use error::{DirectoryError, RemoteError, SyncTimeout};
pub use lifecycle::ClusterLifecycle;
pub use mesh::{ClusterMesh, ClusterMeshOptions};
pub use metrics::ClusterMeshMetrics;
pub use observer::{
    MeshObserver, RemoteStore, RemoteValue, StoreContext, SyncedCallback, ValueObserver, observe,
};
pub use settings::ClusterMeshSettings;
pub use skep_base_api_types::{
    RemoteClusterConfig, RemoteClusterStatus, RemoteClusterSynced, clusters_summary as summary,
};

hive::catalogue!(cell);
