// SPDX-License-Identifier: Apache-2.0

//! Programs that copy remote clusters instead of using them.

use std::fmt;

use futures::future::BoxFuture;
use skep_clustermesh_types::{CiliumClusterConfig, ClusterName};

/// What a program does with a remote cluster as a whole. With it, any configuration of a cluster is taken: that is checked by
/// those who use the values.
pub trait ClusterLifecycle: fmt::Debug + Send + Sync {
    /// The configuration of a cluster was read; it comes with every connection.
    fn configured(&self, cluster: &ClusterName, config: &CiliumClusterConfig);

    /// Services of a cluster were withdrawn, because it could not be reached for too long.
    fn withdrawn(&self, cluster: &ClusterName) {
        let _ = cluster;
    }

    /// The file of a cluster is gone: waits until its values may be deleted. Dropped if there is a file again, or if the
    /// program stops.
    fn leaving<'a>(&'a self, cluster: &'a ClusterName) -> BoxFuture<'a, ()>;

    /// Deletes all that came from a cluster. Dropped if the program stops. Stores of the cluster are not used any more.
    fn removed<'a>(&'a self, cluster: &'a ClusterName) -> BoxFuture<'a, ()>;
}
