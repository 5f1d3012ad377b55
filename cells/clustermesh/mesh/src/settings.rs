// SPDX-License-Identifier: Apache-2.0

//! Settings of the mesh.

use std::path::PathBuf;
use std::time::Duration;

/// Which remote clusters are read, and for how long what they said counts.
#[derive(Debug, Clone, hive::Config)]
pub struct ClusterMeshSettings {
    /// Directory with the configurations of remote clusters, one file per cluster, named after it. Empty: no
    /// cluster mesh.
    pub clustermesh_config: PathBuf,
    /// Time after which services of a disconnected remote cluster are removed; 0: never. Nodes, addresses and
    /// identities are kept.
    #[config(default = "0s")]
    pub clustermesh_cache_ttl: Duration,
    /// Timeout of the initial synchronization with remote clusters.
    #[config(default = "1m")]
    pub clustermesh_sync_timeout: Duration,
}
