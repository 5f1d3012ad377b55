// SPDX-License-Identifier: Apache-2.0

//! Watch-store manager: what reads a prefix starts when the writer of the prefix says that it is complete.

#[cfg(test)]
mod tests;

use std::fmt;

use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use skep_kvstore_client::{Client, Event, keys};

/// Starts the watches of a cluster's prefixes: each when its canary `cilium/synced/<cluster>/<prefix>` exists.
///
/// A reader that lists earlier would take a store that is being filled for one that has lost its keys.
///
/// ```no_run
/// # use skep_kvstore_client::Client;
/// # use skep_kvstore_store::{Raw, WatchStore, WatchStoreManager, WatchStoreOptions};
/// # async fn connected(client: Client, has_canaries: bool) {
/// let mut nodes = WatchStore::new(Raw, (), WatchStoreOptions::new("alder"));
/// let mut services = WatchStore::new(Raw, (), WatchStoreOptions::new("alder"));
///
/// let mut manager = if has_canaries {
///     WatchStoreManager::with_canaries(client.clone(), "alder")
/// } else {
///     WatchStoreManager::immediate()
/// };
/// manager.register("cilium/state/nodes/v1", nodes.watch(&client, "cilium/state/nodes/v1/alder"));
/// manager.register("cilium/state/services/v1", services.watch(&client, "cilium/state/services/v1/alder"));
/// manager.run().await;
/// # }
/// ```
#[must_use = "registered prefixes are read only while the manager runs"]
pub struct WatchStoreManager<'a> {
    canaries: Option<Canaries>,
    waiting: Vec<(String, BoxFuture<'a, ()>)>,
}

struct Canaries {
    client: Client,
    cluster: String,
}

impl<'a> WatchStoreManager<'a> {
    /// Waits for the canaries of a cluster, whose configuration has the capability `syncedCanaries`.
    pub fn with_canaries(client: Client, cluster: impl Into<String>) -> Self {
        Self {
            canaries: Some(Canaries {
                client,
                cluster: cluster.into(),
            }),
            waiting: Vec::new(),
        }
    }

    /// Starts everything at once: the cluster writes no canaries.
    pub fn immediate() -> Self {
        Self {
            canaries: None,
            waiting: Vec::new(),
        }
    }

    /// Registers what reads a prefix. `prefix` is as in the canary: `cilium/state/ip/v1`, without the rest of the path. The
    /// future runs as part of [`run`](Self::run), and is not polled before it starts.
    pub fn register(&mut self, prefix: &str, reader: impl Future<Output = ()> + Send + 'a) {
        let prefix = prefix.trim_end_matches('/').to_owned();
        self.waiting.push((prefix, Box::pin(reader)));
    }

    /// Runs the readers, each from when its canary appears. A canary that is deleted later changes nothing. Never returns:
    /// dropping the future ends all readers.
    pub async fn run(mut self) {
        let mut running = FuturesUnordered::new();
        let Some(Canaries { client, cluster }) = self.canaries else {
            running.extend(self.waiting.into_iter().map(|(_, reader)| reader));
            while running.next().await.is_some() {}
            return std::future::pending().await;
        };
        let prefix = keys::below(&keys::join([keys::SYNCED, &cluster]));
        let mut watcher = client.list_and_watch(&prefix);
        loop {
            let event = tokio::select! {
                event = watcher.next() => event,
                Some(()) = running.next() => continue,
            };
            let (Event::Create(item) | Event::Modify(item)) = event else {
                continue;
            };
            let name = item.key.strip_prefix(prefix.as_str()).unwrap_or_default();
            for (prefix, reader) in self.waiting.extract_if(.., |(prefix, _)| prefix == name) {
                tracing::info!(cluster, prefix, "Watching prefix of remote cluster");
                running.push(reader);
            }
        }
    }
}

impl fmt::Debug for WatchStoreManager<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let prefixes: Vec<&str> = self.waiting.iter().map(|(prefix, _)| prefix.as_str()).collect();
        f.debug_struct("WatchStoreManager")
            .field(
                "cluster",
                &self.canaries.as_ref().map(|canaries| &canaries.cluster),
            )
            .field("waiting", &prefixes)
            .finish()
    }
}
