// SPDX-License-Identifier: Apache-2.0

//! When the copies count as complete.

use std::time::Duration;

use futures::future::join_all;
use skep_clustermesh_mesh::ClusterMesh;
use skep_clustermesh_types::ClusterName;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::copies::Copies;

/// Whether this replica is ready: all remote clusters that can be reached are copied, or another replica leads. It stays
/// ready: later failures of remote clusters are no reason to withdraw what is copied.
#[derive(Debug)]
pub struct Readiness(watch::Sender<bool>);

impl Readiness {
    #[must_use]
    pub fn new() -> Self {
        Self(watch::Sender::new(false))
    }

    pub fn is_ready(&self) -> bool {
        *self.0.borrow()
    }

    /// Waits until the replica is ready.
    pub async fn wait(&self) {
        // The sender lives as long as this.
        let _ = self.0.subscribe().wait_for(|is_ready| *is_ready).await;
    }

    /// The replica is ready from now on.
    pub fn set(&self) {
        self.0.send_replace(true);
    }
}

impl Default for Readiness {
    fn default() -> Self {
        Self::new()
    }
}

/// Waits until all clusters that are configured now are copied. Those that are not connected in time are left out; after the
/// global timeout all are.
pub(crate) async fn wait_copied(
    mesh: &ClusterMesh,
    copies: &Copies,
    per_cluster: Duration,
    global: Duration,
) {
    let clusters = mesh.configured().await;
    let all = join_all(
        clusters
            .iter()
            .map(|cluster| copied(copies, cluster, per_cluster)),
    );
    if timeout(global, all).await.is_err() {
        tracing::warn!(after = ?global, "Timed out waiting for remote clusters, ready without them");
    }
}

async fn copied(copies: &Copies, cluster: &ClusterName, per_cluster: Duration) {
    let configured = async {
        let copy = copies.wait(cluster).await;
        copy.wait_configured().await;
        copy
    };
    match timeout(per_cluster, configured).await {
        Ok(copy) => copy.wait_synced().await,
        Err(_) => tracing::warn!(
            cluster = %cluster, after = ?per_cluster,
            "Timed out waiting for remote cluster, ready without it"
        ),
    }
}
