// SPDX-License-Identifier: Apache-2.0

//! The worker of a sync store: writes pending keys in batches, several at a time.

use bytes::Bytes;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use jiff::Timestamp;
use skep_kvstore_client::{Error, Key, KeyChange, Lifetime, MAX_BATCH};

use super::{Canary, Item, SyncStore, SyncStoreOptions, WriteMode};
use crate::log::chain;
use crate::queue::{Failure, SMALL};
use crate::recorder::Direction;

/// How many batches are written at a time: enough that the store never waits for this program.
const PIPELINE: usize = 4;
/// How large the values of a batch are together: less than etcd's limit for a request, 1.5 MiB.
const BATCH_BYTES: usize = 512 * 1024;

impl SyncStore {
    /// Writes what is pending. Never returns.
    pub(super) async fn work(&self) {
        let queue = &self.inner.queue;
        queue.restart();
        let mut batches = FuturesUnordered::new();
        loop {
            tokio::select! {
                items = queue.next_batch(MAX_BATCH), if batches.len() < PIPELINE => batches.push(self.handle(items)),
                Some(()) = batches.next() => {}
            }
        }
    }

    async fn handle(&self, items: Vec<Item>) {
        let has_canary = items.contains(&Item::Canary);
        let keys = items.into_iter().filter_map(|item| match item {
            Item::Key(key) => Some(key),
            Item::Canary => None,
        });
        for changes in batches(self.changes(keys)) {
            self.write_batch(changes).await;
        }
        if has_canary {
            let result = self.write_canary().await;
            self.handled(vec![Item::Canary], result);
        }
    }

    /// What is to be written of these keys; the others are right.
    fn changes(&self, keys: impl Iterator<Item = Key>) -> Vec<(Key, Option<Bytes>)> {
        let mut changes = Vec::new();
        let mut right = Vec::new();
        {
            let state = &mut *self.inner.state.lock();
            for key in keys {
                let Some(value) = state.desired.get(&key) else {
                    right.push(Item::Key(key));
                    continue;
                };
                let value = value
                    .as_ref()
                    .map(|value| Bytes::from(state.packer.unpack(value)));
                if state.found.take(&key, value.as_ref()) {
                    right.push(Item::Key(key));
                } else {
                    changes.push((key, value));
                }
            }
        }
        self.handled(right, Ok(()));
        changes
    }

    async fn write_batch(&self, changes: Vec<(Key, Option<Bytes>)>) {
        let inner = &*self.inner;
        if changes.len() > 1 && inner.options.write == WriteMode::Always {
            let batch: Vec<KeyChange> = changes
                .iter()
                .map(|(key, value)| KeyChange {
                    key: key.clone(),
                    value: value.clone(),
                })
                .collect();
            let result = inner.client.apply(&batch).await;
            if !matches!(&result, Err(error) if Failure::from(error) == Failure::Item) {
                self.written(&changes, result);
                return;
            }
        }
        // One of them may be invalid: it alone is delayed.
        for change in changes {
            let result = self.write(&change.0, change.1.clone()).await;
            self.written(&[change], result);
        }
    }

    async fn write(&self, key: &Key, value: Option<Bytes>) -> Result<(), Error> {
        let inner = &*self.inner;
        let client = &inner.client;
        match (value, inner.options.write) {
            (Some(value), WriteMode::Always) => client.put(key, value, Lifetime::Leased).await?,
            (Some(value), WriteMode::IfDifferent) => {
                client.put_if_different(key, value, Lifetime::Leased).await?;
            }
            (None, _) => {
                client.delete(key).await?;
            }
        }
        Ok(())
    }

    /// Reports how a write of these keys went.
    fn written(&self, changes: &[(Key, Option<Bytes>)], result: Result<(), Error>) {
        if result.is_ok() {
            let mut state = self.inner.state.lock();
            for (key, value) in changes {
                if value.is_none()
                    && let Some(None) = state.desired.get(key)
                {
                    state.desired.remove(key);
                }
            }
        }
        let items = changes.iter().map(|(key, _)| Item::Key(key.clone()));
        self.handled(items.collect(), result);
    }

    fn handled(&self, items: Vec<Item>, result: Result<(), Error>) {
        if items.is_empty() {
            return;
        }
        let inner = &*self.inner;
        let SyncStoreOptions {
            recorder, cluster, ..
        } = &inner.options;
        match result {
            Ok(()) => {
                let written = {
                    let mut state = inner.state.lock();
                    let written = inner.queue.done_all(items);
                    if let Canary::After(keys) = &mut state.canary {
                        for item in &written {
                            if let Item::Key(key) = item {
                                keys.remove(key);
                            }
                        }
                    }
                    written
                };
                let mut changed = inner.changed.lock();
                for item in &written {
                    if let Item::Key(key) = item
                        && let Some(at) = changed.remove(key)
                    {
                        recorder.written(&inner.prefix, cluster, at.elapsed());
                    }
                }
                // After a large first list.
                if changed.is_empty() {
                    changed.shrink_to(SMALL);
                }
                drop(changed);
                self.check_canary();
            }
            Err(error) => {
                recorder.sync_error(&inner.prefix, cluster);
                tracing::warn!(
                    cluster, keys = items.len(), error = %chain(&error), "Unable to write kvstore keys, retrying"
                );
                inner.queue.failed_all(items, Failure::from(&error));
            }
        }
        recorder.queue(&inner.prefix, cluster, inner.queue.len());
    }

    async fn write_canary(&self) -> Result<(), Error> {
        let inner = &*self.inner;
        let value = {
            let mut state = inner.state.lock();
            if !matches!(state.canary, Canary::Due) {
                // It waits for keys again.
                return Ok(());
            }
            state.completed.get_or_insert_with(timestamp).clone()
        };
        inner.client.put(&inner.canary, value, Lifetime::Leased).await?;
        let is_first = !inner.is_synced.send_replace(true);
        if is_first {
            let SyncStoreOptions {
                recorder, cluster, ..
            } = &inner.options;
            recorder.initial_sync(&inner.prefix, cluster, Direction::Write, true);
            tracing::info!(
                cluster,
                prefix = inner.prefix,
                "Wrote initial keys to the kvstore"
            );
        }
        Ok(())
    }
}

/// Cuts changes into batches that the store accepts.
fn batches(changes: Vec<(Key, Option<Bytes>)>) -> Vec<Vec<(Key, Option<Bytes>)>> {
    let mut batches: Vec<Vec<_>> = Vec::new();
    let mut size = 0;
    for (key, value) in changes {
        let bytes = key.len() + value.as_ref().map_or(0, Bytes::len);
        match batches.last_mut() {
            Some(batch) if size + bytes <= BATCH_BYTES => batch.push((key, value)),
            _ => {
                size = 0;
                batches.push(vec![(key, value)]);
            }
        }
        size += bytes;
    }
    batches
}

/// Time as Cilium writes it: RFC 3339, UTC, whole seconds.
fn timestamp() -> String {
    Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}
