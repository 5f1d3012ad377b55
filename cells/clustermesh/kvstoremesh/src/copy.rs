// SPDX-License-Identifier: Apache-2.0

//! The copy of one remote cluster: what is written into the own store for it.

use std::sync::Arc;

use bytes::Bytes;
use futures::future::join_all;
use hive::{CancellationToken, JobCtx};
use skep_clustermesh_types::{ClusterName, Kind};
use skep_kvstore_client::Client;
use skep_kvstore_store::{StoreRecorder, SyncStore, SyncStoreOptions};
use tokio::sync::watch;

use crate::enforce::enforce;

/// The copy of one remote cluster. It is written while [`run`](Self::run) runs, whether the cluster is connected or not.
#[derive(Debug)]
pub(crate) struct ClusterCopy {
    pub(crate) cluster: ClusterName,
    client: Client,
    stores: Vec<(Kind, SyncStore)>,
    /// The configuration of the cluster, as it is to be written; `None`: not at all.
    pub(crate) config: watch::Sender<Option<Bytes>>,
    stop: CancellationToken,
    running: tokio::sync::Mutex<()>,
}

impl ClusterCopy {
    pub(crate) fn new(client: Client, cluster: ClusterName, recorder: &Arc<dyn StoreRecorder>) -> Self {
        let store = |kind: Kind| {
            let options = SyncStoreOptions::new(cluster.as_str(), &kind.prefix(cluster.as_str(), true))
                .canary_prefix(kind.cache_prefix())
                .recorder(recorder.clone())
                .adopt();
            (kind, SyncStore::new(client.clone(), options))
        };
        Self {
            stores: Kind::ALL.into_iter().map(store).collect(),
            client,
            cluster,
            config: watch::Sender::new(None),
            stop: CancellationToken::new(),
            running: tokio::sync::Mutex::default(),
        }
    }

    /// Where the values of a kind are written.
    pub(crate) fn store(&self, kind: Kind) -> Option<SyncStore> {
        let mut stores = self.stores.iter();
        stores.find(|(of, _)| *of == kind).map(|(_, store)| store.clone())
    }

    /// Writes the copy until [`stop`](Self::stop).
    pub(crate) async fn run(&self, _: &JobCtx) {
        let _running = self.running.lock().await;
        let stores = join_all(self.stores.iter().map(|(_, store)| store.run()));
        tokio::select! {
            () = self.stop.cancelled() => {}
            _ = stores => {}
            () = enforce(&self.client, &self.cluster, self.config.subscribe()) => {}
        }
    }

    /// Ends [`run`](Self::run), and waits until it has ended: then nothing is written any more.
    pub(crate) async fn stop(&self) {
        self.stop.cancel();
        let _ = self.running.lock().await;
    }

    /// Waits until the cluster was connected, and its configuration known.
    pub(crate) async fn wait_configured(&self) {
        // The sender lives as long as this.
        let _ = self.config.subscribe().wait_for(Option::is_some).await;
    }

    /// Waits until all kinds are complete in the own store, with their canaries; or until the copy is stopped.
    pub(crate) async fn wait_synced(&self) {
        let synced = join_all(self.stores.iter().map(|(_, store)| store.wait_synced()));
        tokio::select! {
            () = self.stop.cancelled() => {}
            _ = synced => {}
        }
    }
}
