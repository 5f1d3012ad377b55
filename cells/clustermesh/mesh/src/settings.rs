// SPDX-License-Identifier: Apache-2.0

//! Settings of the mesh.

use std::path::PathBuf;
use std::time::Duration;

/// Which remote clusters are read, and for how long what they said counts.
#[derive(Debug, Clone, hive::Config)]
pub struct ClusterMeshSettings {
    /// Directory with the configurations of remote clusters, one file a cluster, named like it. Empty: there is no mesh.
    pub clustermesh_config: PathBuf,
    /// How long services of a cluster are used that cannot be reached; 0: without limit. Nodes, addresses and identities stay.
    #[config(default = "0s")]
    pub clustermesh_cache_ttl: Duration,
    /// How long to wait for remote clusters at start before going on without them.
    #[config(default = "1m")]
    pub clustermesh_sync_timeout: Duration,
}
