// SPDX-License-Identifier: Apache-2.0

//! Passes what is read of a remote cluster to its copy, as bytes.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use skep_clustermesh_mesh::{MeshObserver, RemoteStore, StoreContext, SyncedCallback};
use skep_clustermesh_types::{Kind, RemoteInfo};
use skep_kvstore_client::{Client, RawEvent, keys};
use skep_kvstore_store::{
    Direction, StoreRecorder, SyncStore, WatchStoreOptions, WatchStoreReporter, WatchStoreStatus,
};

use crate::copies::Copies;

/// Copies one kind of values of all remote clusters.
pub(crate) struct Reflector {
    kind: Kind,
    copies: Arc<Copies>,
}

pub(crate) fn reflectors(copies: &Arc<Copies>) -> Vec<Arc<dyn MeshObserver>> {
    let reflector = |kind| {
        let copies = copies.clone();
        Arc::new(Reflector { kind, copies }) as Arc<dyn MeshObserver>
    };
    Kind::ALL.into_iter().map(reflector).collect()
}

impl fmt::Debug for Reflector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Reflector({})", self.kind)
    }
}

impl MeshObserver for Reflector {
    fn kind(&self) -> Kind {
        self.kind
    }

    fn store(&self, context: StoreContext) -> Box<dyn RemoteStore> {
        let copy = self.copies.get(&context.cluster);
        Box::new(Mirror {
            store: copy.store(self.kind).expect("a copy has a store for each kind"),
            reporter: WatchStoreReporter::new(),
            options: context.options,
            synced: Some(context.synced),
        })
    }
}

/// Passes one kind of values of one remote cluster. What is there is in the sync store; nothing is held twice.
struct Mirror {
    store: SyncStore,
    reporter: WatchStoreReporter,
    options: WatchStoreOptions,
    synced: Option<SyncedCallback>,
}

impl Mirror {
    async fn follow(&mut self, client: &Client, prefix: &str) {
        let prefix = keys::below(prefix);
        let running = Running {
            reporter: &self.reporter,
            recorder: &self.options.recorder,
            prefix: &prefix,
            cluster: &self.options.cluster,
        };
        running.report(false);
        // Names of the list that is read, if there may be others: those were deleted while the cluster was not connected.
        let mut listed: Option<HashSet<Box<str>>> = None;
        let mut is_listed = false;
        let mut is_reported = false;
        // The store knows the keys: the watcher need not.
        let mut watcher = client.list_and_watch_raw(&prefix);
        loop {
            let event = tokio::select! {
                event = watcher.next() => event,
                () = self.store.wait_synced(), if is_listed && !is_reported => {
                    is_reported = true;
                    running.report(true);
                    if let Some(synced) = self.synced.take() {
                        synced.call();
                    }
                    continue;
                }
            };
            match event {
                RawEvent::ListStarted => listed = (!self.store.is_empty()).then(HashSet::new),
                RawEvent::Put(item) => {
                    let name = name_of(&prefix, &item.key);
                    if let Some(listed) = &mut listed {
                        listed.insert(name.into());
                    }
                    self.store.upsert(name, item.value);
                }
                RawEvent::Delete(key) => self.store.delete(name_of(&prefix, &key)),
                RawEvent::Listed => {
                    is_listed = true;
                    if let Some(listed) = listed.take() {
                        self.store.retain(|name| listed.contains(name));
                    }
                    self.store.set_synced();
                }
            }
            self.reporter.set_entries(self.store.len());
        }
    }
}

impl RemoteStore for Mirror {
    fn configure(&mut self, _remote: &RemoteInfo) {}

    fn watch<'a>(&'a mut self, client: &'a Client, prefix: &'a str) -> BoxFuture<'a, ()> {
        self.follow(client, prefix).boxed()
    }

    fn drain(&mut self) {
        self.store.retain(|_| false);
        self.reporter.set_entries(0);
    }

    /// Readers wait for the canary of each kind.
    fn disable(&mut self) {
        self.drain();
        self.store.set_synced();
    }

    fn status(&self) -> WatchStoreStatus {
        self.reporter.status()
    }
}

/// Ends the synced state with the watch.
struct Running<'a> {
    reporter: &'a WatchStoreReporter,
    recorder: &'a Arc<dyn StoreRecorder>,
    prefix: &'a str,
    cluster: &'a str,
}

impl Running<'_> {
    fn report(&self, is_synced: bool) {
        self.reporter.set_synced(is_synced);
        self.recorder
            .initial_sync(self.prefix, self.cluster, Direction::Read, is_synced);
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.report(false);
    }
}

fn name_of<'a>(prefix: &str, key: &'a str) -> &'a str {
    key.strip_prefix(prefix).unwrap_or(key)
}
