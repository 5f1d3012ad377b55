// SPDX-License-Identifier: Apache-2.0

//! Errors of the mesh.

use std::path::PathBuf;
use std::time::Duration;

use skep_clustermesh_types::{ClusterName, ConfigError, Kind, ValueError};
use skep_kvstore_client::{Cause, ConnectionError};

/// Why a remote cluster is not read at the moment. Retried with back-off; what was read before stays.
#[derive(Clone, Debug, thiserror::Error)]
pub enum RemoteError {
    /// The file of the cluster makes no sense. Fix it.
    #[error("cluster `{cluster}`: invalid configuration file")]
    File {
        cluster: ClusterName,
        #[source]
        cause: Cause,
    },

    /// The store of the cluster cannot be reached, or makes no progress. Check address, network and certificates.
    #[error("cluster `{cluster}`: connection failed")]
    Connection {
        cluster: ClusterName,
        #[source]
        cause: Box<ConnectionError>,
    },

    /// The store has no configuration of the cluster. Check that the file is that of the right cluster, and that
    /// kvstoremesh, if it is between, is connected to it.
    #[error(
        "cluster `{cluster}`: remote cluster configuration required but not found; is kvstoremesh connected to it, and is it the name of the cluster?"
    )]
    NoConfig { cluster: ClusterName },

    /// The configuration could not be read.
    #[error("cluster `{cluster}`: cannot read the cluster configuration within {after:?}")]
    ReadConfig {
        cluster: ClusterName,
        after: Duration,
        /// The last error, if there was one.
        #[source]
        cause: Option<Box<skep_kvstore_client::Error>>,
    },

    #[error("cluster `{cluster}`: invalid cluster configuration")]
    InvalidConfig {
        cluster: ClusterName,
        #[source]
        cause: std::sync::Arc<ValueError>,
    },

    /// The cluster cannot be in a mesh with this one.
    #[error("incompatible cluster configuration")]
    Incompatible(#[source] ConfigError),

    /// Another remote cluster has the id. Renumber one of them.
    #[error("cluster `{cluster}`: cluster id {id} is already used by cluster `{owner}`")]
    DuplicateId {
        cluster: ClusterName,
        id: u32,
        owner: ClusterName,
    },
}

/// Why the directory of configurations cannot be followed.
#[derive(Debug, thiserror::Error)]
pub enum DirectoryError {
    /// It cannot be read: it must exist.
    #[error("cannot read clustermesh-config directory `{}`", path.display())]
    Read {
        path: PathBuf,
        #[source]
        cause: std::io::Error,
    },

    #[error("cannot watch clustermesh-config directory `{}`", path.display())]
    Watch {
        path: PathBuf,
        #[source]
        cause: notify::Error,
    },

    /// Some of its files are not used. The others are.
    #[error("{}", files.join("; "))]
    Files {
        /// Each file, and what is wrong with it.
        files: Vec<String>,
    },
}

/// Remote clusters did not become synced in time. What depends on them continues without it.
#[derive(Clone, Debug, thiserror::Error)]
#[error("no sync with remote clusters within {after:?}: {}", missing(clusters))]
pub struct SyncTimeout {
    pub after: Duration,
    /// Clusters, and what of them is not synced.
    pub clusters: Vec<(ClusterName, Vec<Kind>)>,
}

fn missing(clusters: &[(ClusterName, Vec<Kind>)]) -> String {
    let of_cluster = |(cluster, kinds): &(ClusterName, Vec<Kind>)| {
        let kinds: Vec<&str> = kinds.iter().map(|kind| kind.as_str()).collect();
        format!("{cluster} ({})", kinds.join(", "))
    };
    let texts: Vec<String> = clusters.iter().map(of_cluster).collect();
    texts.join(", ")
}
