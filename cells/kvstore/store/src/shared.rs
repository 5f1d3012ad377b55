// SPDX-License-Identifier: Apache-2.0

//! Shared store: the keys of all programs below a prefix, of which each writes its own.

#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use skep_kvstore_client::{Client, Error, keys};

use crate::entry::{Decoder, Observer};
use crate::recorder::{NoStoreRecorder, StoreRecorder};
use crate::sync::{SyncStore, SyncStoreOptions, WriteMode};
use crate::watch::{WatchStore, WatchStoreOptions, WatchStoreStatus};

/// How a [`SharedStore`] behaves.
#[derive(Clone, Debug)]
pub struct SharedStoreOptions {
    /// Name of the own cluster, for logs and metrics.
    pub cluster: String,
    /// Prefix of the keys: `cilium/state/nodes/v1`.
    pub prefix: String,
    /// How often own keys are compared and written again if they differ; at least a second.
    pub refresh_interval: Duration,
    /// How long an entry stays after its key was deleted, unless the key is created again.
    pub delete_delay: Duration,
    /// How long the first list may take, for [`SharedStore::wait_listed`].
    pub list_timeout: Duration,
    pub recorder: Arc<dyn StoreRecorder>,
}

impl SharedStoreOptions {
    /// Cilium's times for nodes: refresh every 30 min, deletion after 30 s, 3 min for the list. Measures nothing.
    pub fn new(cluster: impl Into<String>, prefix: &str) -> Self {
        Self {
            cluster: cluster.into(),
            prefix: prefix.trim_end_matches('/').to_owned(),
            refresh_interval: Duration::from_secs(30 * 60),
            delete_delay: Duration::from_secs(30),
            list_timeout: Duration::from_secs(3 * 60),
            recorder: Arc::new(NoStoreRecorder),
        }
    }
}

/// The keys of all programs below a prefix, while [`run`](Self::run) runs. Clones are the same store.
///
/// The observer gets all entries, the own ones as well. An own key that another deletes is written again, and not reported as
/// deleted. Own keys have the lease of the client, so that they vanish for others some time after the program did.
pub struct SharedStore<D: Decoder, O> {
    inner: Arc<Inner<D, O>>,
}

struct Inner<D: Decoder, O> {
    client: Client,
    options: SharedStoreOptions,
    own: SyncStore,
    all: tokio::sync::Mutex<WatchStore<D, O>>,
    status: WatchStoreStatus,
}

impl<D: Decoder, O: Observer<D::Key, D::Value, D::Kept>> SharedStore<D, O> {
    /// An empty store. Nothing is read or written until [`run`](Self::run).
    pub fn new(client: Client, decoder: D, observer: O, options: SharedStoreOptions) -> Self {
        let own = SyncStore::new(
            client.clone(),
            SyncStoreOptions::new(&options.cluster, &options.prefix)
                .recorder(options.recorder.clone())
                .write(WriteMode::IfDifferent),
        );
        let reclaim = {
            let own = own.clone();
            Box::new(move |name: &str| own.reclaim(name))
        };
        let all = WatchStore::new(
            decoder,
            observer,
            WatchStoreOptions {
                cluster: options.cluster.clone(),
                delete_delay: options.delete_delay,
                recorder: options.recorder.clone(),
            },
        )
        .reclaim(reclaim);
        Self {
            inner: Arc::new(Inner {
                client,
                options,
                own,
                status: all.status(),
                all: tokio::sync::Mutex::new(all),
            }),
        }
    }

    /// Writes an own key. `name` is the key without the prefix.
    pub fn upsert(&self, name: &str, value: impl Into<Bytes>) {
        self.inner.own.upsert(name, value);
    }

    /// Deletes an own key. Keys of others are not deleted.
    pub fn delete(&self, name: &str) {
        self.inner.own.delete(name);
    }

    /// How many own keys wait to be written or deleted.
    pub fn pending(&self) -> usize {
        self.inner.own.pending()
    }

    /// How the store is as a reader.
    pub fn status(&self) -> &WatchStoreStatus {
        &self.inner.status
    }

    /// Waits until all keys that existed at first are read.
    ///
    /// # Errors
    ///
    /// [`Error::ListTimeout`] after [`SharedStoreOptions::list_timeout`]. The store continues to read.
    pub async fn wait_listed(&self) -> Result<(), Error> {
        let SharedStoreOptions {
            prefix, list_timeout, ..
        } = &self.inner.options;
        match tokio::time::timeout(*list_timeout, self.inner.status.wait_synced()).await {
            Ok(()) => Ok(()),
            Err(_) => Err(Error::ListTimeout {
                prefix: keys::below(prefix),
                after: *list_timeout,
            }),
        }
    }

    /// Reads, and writes what is pending. Never returns: dropping the future pauses the store. A second call waits until the
    /// first one is dropped.
    pub async fn run(&self) {
        let inner = &*self.inner;
        let mut all = inner.all.lock().await;
        let refresh = async {
            let pause = inner.options.refresh_interval.max(Duration::from_secs(1));
            loop {
                tokio::time::sleep(pause).await;
                inner.own.refresh();
            }
        };
        tokio::join!(
            all.watch(&inner.client, &inner.options.prefix),
            inner.own.run(),
            refresh
        );
    }
}

impl<D: Decoder, O> Clone for SharedStore<D, O> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
        }
    }
}

impl<D: Decoder, O> fmt::Debug for SharedStore<D, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedStore")
            .field("options", &self.inner.options)
            .field("pending", &self.inner.own.pending())
            .finish_non_exhaustive()
    }
}
