// SPDX-License-Identifier: Apache-2.0

//! Sync store: local objects into the key-value store.

mod adopt;
mod packed;
#[cfg(test)]
mod tests;
mod worker;

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use futures::FutureExt;
use parking_lot::Mutex;
use skep_kvstore_client::{Client, Key, LostKeys, keys};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::queue::Queue;
use crate::recorder::{NoStoreRecorder, StoreRecorder};
use adopt::Found;
use packed::{Packed, Packer};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum WriteMode {
    #[default]
    Always,
    /// If its value or lease is another.
    IfDifferent,
}

/// How a [`SyncStore`] behaves.
#[derive(Clone, Debug)]
pub struct SyncStoreOptions {
    /// Name of the cluster whose objects are written: the own one, or a remote one whose state is copied.
    pub cluster: String,
    /// Prefix of the keys: `cilium/state/ip/v1/default`.
    pub prefix: String,
    canary_prefix: String,
    recorder: Arc<dyn StoreRecorder>,
    write: WriteMode,
    adopts: bool,
}

impl SyncStoreOptions {
    /// A canary with the prefix of the keys; measures nothing.
    pub fn new(cluster: impl Into<String>, prefix: &str) -> Self {
        let prefix = prefix.trim_end_matches('/').to_owned();
        Self {
            cluster: cluster.into(),
            canary_prefix: prefix.clone(),
            prefix,
            recorder: Arc::new(NoStoreRecorder),
            write: WriteMode::Always,
            adopts: false,
        }
    }

    /// Another prefix in the name of the canary: `cilium/state/ip/v1` for keys below `cilium/state/ip/v1/default`.
    #[must_use]
    pub fn canary_prefix(mut self, prefix: &str) -> Self {
        prefix.trim_end_matches('/').clone_into(&mut self.canary_prefix);
        self
    }

    #[must_use]
    pub fn recorder(mut self, recorder: Arc<dyn StoreRecorder>) -> Self {
        self.recorder = recorder;
        self
    }

    /// Takes over what a former program left behind below the prefix, which no other program may write: keys that are right
    /// are not written again, and the others are deleted before the canary is written. Their leases are kept alive.
    #[must_use]
    pub fn adopt(mut self) -> Self {
        self.adopts = true;
        self
    }

    pub(crate) fn write(mut self, write: WriteMode) -> Self {
        self.write = write;
        self
    }

    /// The key of the canary: `cilium/synced/<cluster>/<prefix>`.
    pub fn canary(&self) -> String {
        keys::join([keys::SYNCED, &self.cluster, &self.canary_prefix])
    }
}

/// Writes local objects below a prefix, while [`run`](Self::run) runs. Clones are the same store.
///
/// Keys have the lease of the client: they stay when the program stops, until the lease ends, so that a restart deletes
/// nothing. Keys whose lease ends earlier are written again. What a former program left behind is not deleted, except with
/// [`adopt`](SyncStoreOptions::adopt).
///
/// Many keys are written in one transaction, and several transactions at a time: there is no order between keys, but the
/// canary follows all of them.
///
/// Failures are retried. If the store fails, the worker pauses for 5 ms to 10 s; if a key fails, such as one with a value
/// that is too large, it alone is delayed by 5 ms to 1 min.
///
/// ```
/// use std::sync::Arc;
/// use skep_kvstore_client::{Client, ClientKind, ClientOptions, memory::Memory};
/// use skep_kvstore_store::{SyncStore, SyncStoreOptions};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), skep_kvstore_client::Error> {
/// let (client, _driver) = Client::new(Arc::new(Memory::new()), ClientOptions::new("etcd", ClientKind::Full));
/// let nodes = SyncStore::new(client.clone(), SyncStoreOptions::new("alder", "cilium/state/nodes/v1"));
///
/// nodes.upsert("alder/n1", "{}");
/// nodes.set_synced();
/// tokio::select! {
///     () = nodes.run() => {}
///     () = nodes.wait_synced() => {}
/// }
///
/// assert!(client.get("cilium/state/nodes/v1/alder/n1").await?.is_some());
/// assert!(client.get("cilium/synced/alder/cilium/state/nodes/v1").await?.is_some());
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct SyncStore {
    inner: Arc<Inner>,
}

struct Inner {
    client: Client,
    options: SyncStoreOptions,
    /// Ends in `/`.
    prefix: String,
    canary: String,
    queue: Queue<Item>,
    state: Mutex<State>,
    /// When each pending key was changed first since it was written.
    changed: Mutex<HashMap<Key, Instant>>,
    is_synced: watch::Sender<bool>,
    /// Held by who runs. What happens to leases and to the store while nothing runs is reported to the next run.
    worker: tokio::sync::Mutex<Worker>,
}

struct Worker {
    lost: LostKeys,
    lost_canary: LostKeys,
    replaced: watch::Receiver<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Item {
    Key(Key),
    Canary,
}

#[derive(Debug, Default)]
struct State {
    /// What the store should hold, by key; `None`: the key is to be deleted. The client has the same keys by their leases.
    desired: HashMap<Key, Option<Packed>>,
    packer: Packer,
    /// How many of them it should hold.
    count: usize,
    canary: Canary,
    /// When the first list was complete: the value of the canary.
    completed: Option<String>,
    /// What a former program left behind.
    found: Found,
}

#[derive(Debug, Default)]
enum Canary {
    /// The first list is not complete.
    #[default]
    Unwanted,
    /// The first list is complete, but what a former program left behind is not known yet.
    AfterAdoption,
    /// To be written when these keys are.
    After(HashSet<Key>),
    /// Written, or only it is left to be written.
    Due,
}

impl SyncStore {
    /// An empty store. Nothing is written until [`run`](Self::run).
    pub fn new(client: Client, options: SyncStoreOptions) -> Self {
        let prefix = keys::below(&options.prefix);
        let canary = options.canary();
        // Registered in this order: when the canary is reported as lost, its neighbours in the lease are already.
        let worker = Worker {
            lost: client.lost_keys(&prefix),
            lost_canary: client.lost_keys(&canary),
            replaced: client.replaced(),
        };
        let state = State {
            found: Found::new(options.adopts),
            ..State::default()
        };
        Self {
            inner: Arc::new(Inner {
                client,
                options,
                prefix,
                canary,
                queue: Queue::new(),
                state: Mutex::new(state),
                changed: Mutex::default(),
                is_synced: watch::Sender::new(false),
                worker: tokio::sync::Mutex::new(worker),
            }),
        }
    }

    /// Writes an object. `name` is the key without the prefix. A value that is the same as the last one is not written.
    pub fn upsert(&self, name: &str, value: impl Into<Bytes>) {
        let value: Bytes = value.into();
        let key = self.key(name);
        {
            let mut state = self.inner.state.lock();
            if let Some(Some(present)) = state.desired.get(&key)
                && state.packer.is(present, &value)
            {
                return;
            }
            let packed = state.packer.pack(&value);
            let before = state.desired.insert(key.clone(), Some(packed));
            state.count += usize::from(before.flatten().is_none());
        }
        self.push(Item::Key(key));
    }

    /// Deletes an object. One that was not written by this store is not deleted.
    pub fn delete(&self, name: &str) {
        let key = self.key(name);
        {
            let mut state = self.inner.state.lock();
            match state.desired.get_mut(&key) {
                Some(value @ Some(_)) => *value = None,
                Some(None) | None => return,
            }
            state.count -= 1;
        }
        self.push(Item::Key(key));
    }

    /// All objects that existed at first have been upserted: when they are written, the canary is. Only the first call has
    /// an effect.
    pub fn set_synced(&self) {
        {
            let mut state = self.inner.state.lock();
            if !matches!(state.canary, Canary::Unwanted) {
                return;
            }
            if state.found.is_pending() {
                state.canary = Canary::AfterAdoption;
                return;
            }
            self.complete(&mut state);
        }
        self.check_canary();
    }

    /// Deletes the objects whose names are not to be kept.
    pub fn retain(&self, mut keep: impl FnMut(&str) -> bool) {
        let mut gone: Vec<Key> = Vec::new();
        {
            let mut state = self.inner.state.lock();
            for (key, value) in &mut state.desired {
                let name = key.strip_prefix(&self.inner.prefix).unwrap_or(key);
                if value.is_some() && !keep(name) {
                    *value = None;
                    gone.push(key.clone());
                }
            }
            state.count -= gone.len();
        }
        for key in gone {
            self.push(Item::Key(key));
        }
    }

    pub fn len(&self) -> usize {
        self.inner.state.lock().count
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Waits until the canary has been written.
    pub async fn wait_synced(&self) {
        let mut is_synced = self.inner.is_synced.subscribe();
        // The sender lives as long as this.
        let _ = is_synced.wait_for(|is_synced| *is_synced).await;
    }

    /// Whether the canary has been written.
    pub fn is_synced(&self) -> bool {
        *self.inner.is_synced.borrow()
    }

    /// How many keys wait to be written or deleted; with the canary.
    pub fn pending(&self) -> usize {
        self.inner.queue.len()
    }

    /// Writes and deletes what is pending. Never returns: dropping the future pauses the store. A second call waits until the
    /// first one is dropped.
    pub async fn run(&self) {
        let inner = &*self.inner;
        if !inner.client.is_enabled() {
            return std::future::pending().await;
        }
        let mut worker = inner.worker.lock().await;
        let Worker {
            lost,
            lost_canary,
            replaced,
        } = &mut *worker;
        let work = async {
            loop {
                let work = async {
                    self.adopt().await;
                    self.work().await;
                };
                tokio::select! {
                    () = work => {}
                    Ok(()) = replaced.changed() => self.start_again(),
                }
            }
        };
        let leases = async {
            loop {
                tokio::select! {
                    // Keys are queued before the canary, which waits for them.
                    biased;
                    keys = lost.next() => self.write_again(&keys),
                    _ = lost_canary.next() => {
                        while let Some(keys) = lost.next().now_or_never() {
                            self.write_again(&keys);
                        }
                        self.write_canary_again();
                    }
                }
            }
        };
        tokio::join!(work, leases);
    }

    /// Whether this store wants a key of that name to exist.
    pub(crate) fn wants(&self, name: &str) -> bool {
        self.wants_key(&self.key(name))
    }

    fn wants_key(&self, key: &str) -> bool {
        matches!(self.inner.state.lock().desired.get(key), Some(Some(_)))
    }

    /// Writes a key again that another has deleted; `false` if this store does not want it.
    pub(crate) fn reclaim(&self, name: &str) -> bool {
        let wants = self.wants(name);
        if wants {
            self.push(Item::Key(self.key(name)));
        }
        wants
    }

    pub(crate) fn refresh(&self) {
        let keys: Vec<Key> = {
            let state = self.inner.state.lock();
            let desired = state.desired.iter().filter(|(_, value)| value.is_some());
            desired.map(|(key, _)| key.clone()).collect()
        };
        for key in keys {
            self.push(Item::Key(key));
        }
    }

    /// The first list is complete: the canary waits for what is pending.
    fn complete(&self, state: &mut State) {
        for key in state.found.stale(&state.desired) {
            state.desired.insert(key.clone(), None);
            self.push(Item::Key(key));
        }
        // While this is locked no key can be reported as written.
        state.canary = Canary::After(self.pending_keys());
    }

    /// Writes the canary if it waits for nothing any more.
    fn check_canary(&self) {
        let is_due = {
            let mut state = self.inner.state.lock();
            let is_due = matches!(&state.canary, Canary::After(keys) if keys.is_empty());
            if is_due {
                state.canary = Canary::Due;
            }
            is_due
        };
        if is_due {
            self.push(Item::Canary);
        }
    }

    /// The lease of keys has ended.
    fn write_again(&self, keys: &[Key]) {
        let mut count = 0;
        for key in keys {
            if self.wants_key(key) {
                self.push(Item::Key(key.clone()));
                count += 1;
            }
        }
        if count > 0 {
            let SyncStoreOptions { cluster, .. } = &self.inner.options;
            let prefix = &self.inner.prefix;
            tracing::info!(cluster, prefix, count, "Lease expired, rewriting its keys");
        }
    }

    /// The store holds another state than what was written to it.
    fn start_again(&self) {
        if self.inner.options.adopts {
            let mut state = self.inner.state.lock();
            state.found = Found::Pending;
            if !matches!(state.canary, Canary::Unwanted) {
                state.canary = Canary::AfterAdoption;
            }
        }
        self.refresh();
        self.write_canary_again();
    }

    /// The lease of the canary has ended: it is written after what is pending.
    fn write_canary_again(&self) {
        {
            let mut state = self.inner.state.lock();
            if !matches!(state.canary, Canary::Due) {
                return;
            }
            // While this is locked no key can be reported as written.
            state.canary = Canary::After(self.pending_keys());
        }
        self.check_canary();
    }

    fn key(&self, name: &str) -> Key {
        let prefix = &self.inner.prefix;
        let mut key = String::with_capacity(prefix.len() + name.len());
        key.push_str(prefix);
        key.push_str(name);
        key.into()
    }

    fn pending_keys(&self) -> HashSet<Key> {
        let items = self.inner.queue.items().into_iter();
        items
            .filter_map(|item| match item {
                Item::Key(name) => Some(name),
                Item::Canary => None,
            })
            .collect()
    }

    fn push(&self, item: Item) {
        let inner = &*self.inner;
        if let Item::Key(key) = &item {
            let mut changed = inner.changed.lock();
            changed.entry(key.clone()).or_insert_with(Instant::now);
        }
        inner.queue.push(item);
        let SyncStoreOptions {
            recorder, cluster, ..
        } = &inner.options;
        recorder.queue(&inner.prefix, cluster, inner.queue.len());
    }
}

impl fmt::Debug for SyncStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SyncStore")
            .field("options", &self.inner.options)
            .field("pending", &self.pending())
            .finish_non_exhaustive()
    }
}
