// SPDX-License-Identifier: Apache-2.0

//! The copies of all remote clusters.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use hive::{Job, Jobs};
use skep_clustermesh_mesh::ClusterLifecycle;
use skep_clustermesh_types::{CiliumClusterConfig, ClusterName};
use skep_kvstore_client::Client;
use skep_kvstore_store::StoreRecorder;
use tokio::sync::watch;

use crate::copy::ClusterCopy;
use crate::metrics::KvstoreMeshMetrics;
use crate::removal;

/// How long a cluster has to be missing in the configuration before its copy is deleted.
pub(crate) const GRACE: Duration = Duration::from_secs(180);

/// The copies of all remote clusters.
pub(crate) struct Copies {
    pub(crate) client: Client,
    pub(crate) is_drained: bool,
    recorder: Arc<dyn StoreRecorder>,
    metrics: Arc<KvstoreMeshMetrics>,
    jobs: Jobs,
    copies: watch::Sender<HashMap<ClusterName, Arc<ClusterCopy>>>,
}

impl Copies {
    pub(crate) fn new(
        client: Client,
        is_drained: bool,
        recorder: Arc<dyn StoreRecorder>,
        metrics: Arc<KvstoreMeshMetrics>,
        jobs: Jobs,
    ) -> Arc<Self> {
        Arc::new(Self {
            client,
            is_drained,
            recorder,
            metrics,
            jobs,
            copies: watch::Sender::default(),
        })
    }

    /// The copy of a cluster that is configured; its job begins with the first call.
    pub(crate) fn get(&self, cluster: &ClusterName) -> Arc<ClusterCopy> {
        if let Some(copy) = self.find(cluster) {
            return copy;
        }
        // The jobs of a cluster follow each other: nothing else adds this one.
        let copy = Arc::new(ClusterCopy::new(
            self.client.clone(),
            cluster.clone(),
            &self.recorder,
        ));
        self.copies.send_modify(|copies| {
            copies.insert(cluster.clone(), copy.clone());
        });
        let job = Job::keep("copy", copy.clone(), ClusterCopy::run);
        if let Err(error) = self.jobs.spawn(job.instance(cluster.as_str())) {
            // The program stops.
            tracing::debug!(cluster = %cluster, %error, "Not syncing remote cluster");
        }
        copy
    }

    /// Waits until a cluster that is configured has a copy.
    pub(crate) async fn wait(&self, cluster: &ClusterName) -> Arc<ClusterCopy> {
        let mut copies = self.copies.subscribe();
        // The sender lives as long as this.
        let _ = copies.wait_for(|copies| copies.contains_key(cluster)).await;
        self.get(cluster)
    }

    /// The copy of a cluster, if it is configured.
    pub(crate) fn find(&self, cluster: &ClusterName) -> Option<Arc<ClusterCopy>> {
        self.copies.borrow().get(cluster).cloned()
    }
}

impl ClusterLifecycle for Copies {
    fn configured(&self, cluster: &ClusterName, config: &CiliumClusterConfig) {
        let mut config = config.clone();
        config.capabilities.synced_canaries = true;
        config.capabilities.cached = true;
        match config.encode() {
            Ok(value) => {
                self.get(cluster).config.send_replace(Some(value.into()));
            }
            Err(error) => tracing::warn!(
                cluster = %cluster, error = hive::error_chain(&error),
                "Unable to encode configuration of remote cluster"
            ),
        }
    }

    fn withdrawn(&self, cluster: &ClusterName) {
        self.metrics.revocations.with([cluster.as_str()]).inc();
    }

    fn leaving<'a>(&'a self, cluster: &'a ClusterName) -> BoxFuture<'a, ()> {
        async move {
            if !self.is_drained {
                return;
            }
            let copy = self.get(cluster);
            // From now on readers connect to it no more.
            let mut leaving = Leaving {
                config: copy.config.send_replace(None),
                copy: &copy,
            };
            removal::delete_config(&self.client, cluster).await;
            tokio::time::sleep(GRACE).await;
            leaving.config = None;
        }
        .boxed()
    }

    fn removed<'a>(&'a self, cluster: &'a ClusterName) -> BoxFuture<'a, ()> {
        async move {
            if let Some(copy) = self.find(cluster) {
                copy.stop().await;
            }
            self.copies.send_modify(|copies| {
                copies.remove(cluster);
            });
            if self.is_drained {
                removal::delete(&self.client, cluster).await;
            }
            self.metrics.remove(cluster.as_str());
        }
        .boxed()
    }
}

/// Writes the configuration of a cluster again if it is configured again before its copy is deleted.
struct Leaving<'a> {
    copy: &'a ClusterCopy,
    config: Option<Bytes>,
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        if let Some(config) = self.config.take() {
            self.copy.config.send_replace(Some(config));
        }
    }
}

impl fmt::Debug for Copies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let clusters: Vec<ClusterName> = self.copies.borrow().keys().cloned().collect();
        f.debug_struct("Copies")
            .field("clusters", &clusters)
            .finish_non_exhaustive()
    }
}
