// SPDX-License-Identifier: Apache-2.0

//! Watch store: the entries below a prefix, decoded, across reconnections.

#[cfg(test)]
mod tests;

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use skep_kvstore_client::{Client, Event, Key, KeyValue, keys};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::entry::{Decoder, InvalidEntry, Observer};
use crate::log::chain;
use crate::recorder::{Direction, NoStoreRecorder, StoreRecorder};

/// How a [`WatchStore`] behaves.
#[derive(Clone, Debug)]
pub struct WatchStoreOptions {
    /// Name of the cluster whose keys are read, for logs and metrics.
    pub cluster: String,
    /// How long an entry stays after its key was deleted, unless the key is created again. Zero: not at all.
    pub delete_delay: Duration,
    pub recorder: Arc<dyn StoreRecorder>,
}

impl WatchStoreOptions {
    pub fn new(cluster: impl Into<String>) -> Self {
        Self {
            cluster: cluster.into(),
            delete_delay: Duration::ZERO,
            recorder: Arc::new(NoStoreRecorder),
        }
    }
}

/// The entries below a prefix, in step with the key-value store while [`watch`](Self::watch) runs.
///
/// Entries outlive a watch: when it starts again, with another client or another prefix (the state of a cluster, or the
/// cached copy of it), only differences are reported. Entries are identified by their name, the key without the prefix.
///
/// An invalid value is reported and dropped; the last valid one stays, until its key is deleted.
///
/// ```
/// use std::sync::Arc;
/// use bytes::Bytes;
/// use skep_kvstore_client::{Client, ClientKind, ClientOptions, Key, Lifetime, memory::Memory};
/// use skep_kvstore_store::{Observer, Raw, WatchStore, WatchStoreOptions};
///
/// struct Print;
///
/// impl Observer<Key, Bytes> for Print {
///     fn upsert(&mut self, key: &Key, value: &Arc<Bytes>) {
///         println!("{key} is {} bytes", value.len());
///     }
///     fn delete(&mut self, key: &Key, _value: &Arc<Bytes>) {
///         println!("{key} is gone");
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), skep_kvstore_client::Error> {
/// let (client, _driver) = Client::new(Arc::new(Memory::new()), ClientOptions::new("etcd", ClientKind::Full));
/// client.put("cilium/state/nodes/v1/alder/n1", "{}", Lifetime::Leased).await?;
///
/// let mut store = WatchStore::new(Raw, Print, WatchStoreOptions::new("alder"));
/// let status = store.status();
/// tokio::select! {
///     () = store.watch(&client, "cilium/state/nodes/v1/alder") => {}
///     () = status.wait_synced() => {}
/// }
/// assert_eq!(status.entries(), 1);
/// # Ok(()) }
/// ```
pub struct WatchStore<D: Decoder, O> {
    decoder: D,
    observer: O,
    options: WatchStoreOptions,
    entries: HashMap<Key, Entry<D>>,
    /// Deleted keys whose entries stay for a while: when they go, and the deletion that was meant.
    vanishing: VecDeque<(Instant, Key, u64)>,
    deletions: u64,
    reclaim: Option<Reclaim>,
    was_synced: bool,
    shared: Arc<Shared>,
}

/// Returns whether the key of that name is written again by this program: then it is not reported as deleted.
pub(crate) type Reclaim = Box<dyn Fn(&str) -> bool + Send + Sync>;

struct Entry<D: Decoder> {
    key: D::Key,
    kept: D::Kept,
    /// Not seen since the watch has started.
    is_stale: bool,
    /// The deletion that makes it go.
    deletion: Option<u64>,
}

#[derive(Debug)]
struct Shared {
    is_synced: watch::Sender<bool>,
    entries: AtomicUsize,
}

/// How a [`WatchStore`] is. Clones are the same.
#[derive(Clone, Debug)]
pub struct WatchStoreStatus(Arc<Shared>);

impl WatchStoreStatus {
    /// Whether the store is watched, and holds all that existed when the watch started.
    pub fn is_synced(&self) -> bool {
        *self.0.is_synced.borrow()
    }

    /// Waits until the store is [synced](Self::is_synced).
    pub async fn wait_synced(&self) {
        // The sender lives as long as this.
        let _ = self
            .0
            .is_synced
            .subscribe()
            .wait_for(|is_synced| *is_synced)
            .await;
    }

    pub fn entries(&self) -> usize {
        self.0.entries.load(Ordering::Relaxed)
    }
}

/// Reports how a store is that is not a [`WatchStore`], but is observed like one.
#[derive(Debug)]
pub struct WatchStoreReporter(Arc<Shared>);

impl WatchStoreReporter {
    /// A store without entries that is not synced.
    pub fn new() -> Self {
        Self(Arc::new(Shared {
            is_synced: watch::Sender::new(false),
            entries: AtomicUsize::new(0),
        }))
    }

    /// How the store is, for others than the owner.
    pub fn status(&self) -> WatchStoreStatus {
        WatchStoreStatus(self.0.clone())
    }

    /// Sets whether the store holds all that exists.
    pub fn set_synced(&self, is_synced: bool) {
        self.0.is_synced.send_replace(is_synced);
    }

    /// Sets how many entries there are.
    pub fn set_entries(&self, entries: usize) {
        self.0.entries.store(entries, Ordering::Relaxed);
    }
}

impl Default for WatchStoreReporter {
    fn default() -> Self {
        Self::new()
    }
}

/// Ends the synced state with the watch.
struct Running {
    shared: Arc<Shared>,
    options: WatchStoreOptions,
    prefix: String,
}

impl Running {
    fn report(&self, is_synced: bool) {
        self.shared.is_synced.send_replace(is_synced);
        let WatchStoreOptions {
            recorder, cluster, ..
        } = &self.options;
        recorder.initial_sync(&self.prefix, cluster, Direction::Read, is_synced);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.report(false);
    }
}

impl<D: Decoder, O: Observer<D::Key, D::Value, D::Kept>> WatchStore<D, O> {
    pub fn new(decoder: D, observer: O, options: WatchStoreOptions) -> Self {
        Self {
            decoder,
            observer,
            options,
            entries: HashMap::new(),
            vanishing: VecDeque::new(),
            deletions: 0,
            reclaim: None,
            was_synced: false,
            shared: Arc::new(Shared {
                is_synced: watch::Sender::new(false),
                entries: AtomicUsize::new(0),
            }),
        }
    }

    /// Protects keys of this program from deletion by others.
    pub fn reclaim(mut self, reclaim: Reclaim) -> Self {
        self.reclaim = Some(reclaim);
        self
    }

    /// How the store is, for others than the owner.
    pub fn status(&self) -> WatchStoreStatus {
        WatchStoreStatus(self.shared.clone())
    }

    /// What decodes; for changes between two watches, such as another id of the remote cluster.
    pub fn decoder_mut(&mut self) -> &mut D {
        &mut self.decoder
    }

    pub fn observer(&self) -> &O {
        &self.observer
    }

    /// The entries as they are [kept](Decoder::Kept), in no particular order.
    pub fn entries(&self) -> impl Iterator<Item = (&D::Key, &D::Kept)> {
        self.entries.values().map(|entry| (&entry.key, &entry.kept))
    }

    /// Keeps the store in step with a prefix. A `/` is added to the prefix, so that `alder` does not match `alder-2`.
    ///
    /// Never returns: dropping the future ends the watch. The entries stay then, but are no longer synced.
    pub async fn watch(&mut self, client: &Client, prefix: &str) {
        let prefix = keys::below(prefix);
        let running = Running {
            shared: self.shared.clone(),
            options: self.options.clone(),
            prefix: prefix.clone(),
        };
        running.report(false);
        // What vanished before may exist again: the list decides.
        self.vanishing.clear();
        for entry in self.entries.values_mut() {
            entry.is_stale = true;
        }
        let mut watcher = client.list_and_watch(&prefix);
        loop {
            let due = self.vanishing.front().map(|(at, ..)| *at);
            let event = tokio::select! {
                event = watcher.next() => event,
                () = until(due) => {
                    self.vanish(Instant::now());
                    continue;
                }
            };
            match event {
                Event::Create(item) | Event::Modify(item) => self.upsert(&prefix, &item),
                Event::Delete(key) => self.deleted(&prefix, &key),
                Event::ListDone => {
                    self.delete_stale();
                    running.report(true);
                    if !self.was_synced {
                        self.was_synced = true;
                        self.observer.synced();
                    }
                }
            }
        }
    }

    /// Reports all entries as deleted, and forgets them: the cluster is no longer part of the mesh.
    pub fn drain(&mut self) {
        let mut names: Vec<Key> = self.entries.keys().cloned().collect();
        names.sort_unstable();
        for name in names {
            self.remove(&name);
        }
        self.vanishing.clear();
    }

    fn upsert(&mut self, prefix: &str, item: &KeyValue) {
        let name = name_of(prefix, &item.key);
        let name = match self.entries.get_key_value(name) {
            Some((name, _)) => name.clone(),
            None => name.into(),
        };
        match self.decoder.decode(&name, &item.value) {
            Ok((key, value)) => {
                let value = Arc::new(value);
                self.observer.upsert(&key, &value);
                let entry = Entry {
                    key,
                    kept: value.into(),
                    is_stale: false,
                    deletion: None,
                };
                self.entries.insert(name, entry);
                self.count();
            }
            Err(error) => {
                // The key exists: what was valid of it stays.
                if let Some(entry) = self.entries.get_mut(&name) {
                    entry.is_stale = false;
                    entry.deletion = None;
                }
                let invalid = InvalidEntry {
                    key: item.key.to_string(),
                    cause: Arc::new(error),
                };
                tracing::warn!(
                    cluster = self.options.cluster, key = %item.key, error = %chain(&*invalid.cause),
                    "Unable to unmarshal kvstore value"
                );
                self.observer.invalid(&invalid);
            }
        }
    }

    fn deleted(&mut self, prefix: &str, key: &str) {
        let name = name_of(prefix, key);
        if !self.entries.contains_key(name) {
            tracing::debug!(cluster = self.options.cluster, key, "Unknown kvstore key deleted");
            self.is_reclaimed(name);
            return;
        }
        self.gone(&name.into());
    }

    /// The key of an entry does not exist any more.
    fn gone(&mut self, name: &Key) {
        if self.is_reclaimed(name) {
            if let Some(entry) = self.entries.get_mut(name) {
                entry.is_stale = false;
            }
            return;
        }
        if self.options.delete_delay.is_zero() {
            self.remove(name);
            return;
        }
        if let Some(entry) = self.entries.get_mut(name) {
            self.deletions += 1;
            entry.is_stale = false;
            entry.deletion = Some(self.deletions);
            let at = Instant::now() + self.options.delete_delay;
            self.vanishing.push_back((at, name.clone(), self.deletions));
        }
    }

    fn is_reclaimed(&self, name: &str) -> bool {
        self.reclaim.as_ref().is_some_and(|reclaim| reclaim(name))
    }

    /// Deletes entries whose keys have been gone for long enough.
    fn vanish(&mut self, now: Instant) {
        while self.vanishing.front().is_some_and(|(at, ..)| *at <= now) {
            let Some((_, name, deletion)) = self.vanishing.pop_front() else {
                return;
            };
            let is_meant = self
                .entries
                .get(&name)
                .is_some_and(|entry| entry.deletion == Some(deletion));
            if is_meant {
                self.remove(&name);
            }
        }
    }

    fn delete_stale(&mut self) {
        let mut stale: Vec<Key> = self
            .entries
            .iter()
            .filter(|(_, entry)| entry.is_stale)
            .map(|(name, _)| name.clone())
            .collect();
        stale.sort_unstable();
        for name in stale {
            self.gone(&name);
        }
    }

    fn remove(&mut self, name: &str) {
        if let Some(entry) = self.entries.remove(name) {
            self.observer.delete(&entry.key, &entry.kept);
            self.count();
        }
    }

    fn count(&self) {
        self.shared.entries.store(self.entries.len(), Ordering::Relaxed);
    }
}

impl<D: Decoder, O> fmt::Debug for WatchStore<D, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WatchStore")
            .field("options", &self.options)
            .field("entries", &self.entries.len())
            .finish_non_exhaustive()
    }
}

fn name_of<'a>(prefix: &str, key: &'a str) -> &'a str {
    key.strip_prefix(prefix).unwrap_or(key)
}

async fn until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}
