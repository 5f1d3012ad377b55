// SPDX-License-Identifier: Apache-2.0

//! What a former program left behind below the prefix of a sync store.

use std::collections::HashMap;

use bytes::Bytes;
use skep_kvstore_client::{Adopted, Key, backoff};

use super::{Canary, SyncStore};
use crate::log::chain;
use crate::queue::STORE_BACKOFF;

/// Keys that existed before the store wrote any.
#[derive(Debug, Default)]
pub(super) enum Found {
    Pending,
    /// Keys that were not handled yet, with the values of those whose lease is kept alive.
    Known(HashMap<Key, Option<Bytes>>),
    /// All of them were handled, or the store does not look for them.
    #[default]
    Nothing,
}

impl Found {
    pub(super) fn new(is_wanted: bool) -> Self {
        if is_wanted { Self::Pending } else { Self::Nothing }
    }

    pub(super) fn is_pending(&self) -> bool {
        matches!(self, Self::Pending)
    }

    /// Takes out a key; returns whether it has that value, with a lease that is kept alive.
    pub(super) fn take(&mut self, key: &str, value: Option<&Bytes>) -> bool {
        let Self::Known(keys) = self else { return false };
        let found = keys.remove(key);
        if keys.is_empty() {
            *self = Self::Nothing;
        }
        matches!((found, value), (Some(Some(found)), Some(value)) if found == *value)
    }

    /// Takes out the keys that are not desired.
    pub(super) fn stale<V>(&mut self, desired: &HashMap<Key, V>) -> Vec<Key> {
        let Self::Known(keys) = self else {
            return Vec::new();
        };
        let stale: Vec<Key> = keys
            .keys()
            .filter(|key| !desired.contains_key(*key))
            .cloned()
            .collect();
        for key in &stale {
            keys.remove(key);
        }
        stale
    }
}

impl SyncStore {
    /// Looks for what a former program left behind, until that succeeds.
    pub(super) async fn adopt(&self) {
        let inner = &*self.inner;
        let mut failures = 0;
        while inner.state.lock().found.is_pending() {
            let cluster = &inner.options.cluster;
            match inner.client.adopt(&inner.prefix).await {
                Ok(keys) => {
                    tracing::debug!(
                        cluster,
                        prefix = inner.prefix,
                        count = keys.len(),
                        "Adopted keys of the previous run"
                    );
                    self.adopted(keys);
                }
                Err(error) => {
                    failures += 1;
                    inner.options.recorder.sync_error(&inner.prefix, cluster);
                    tracing::warn!(cluster, error = %chain(&error), "Unable to list kvstore keys of the previous run, retrying");
                    tokio::time::sleep(backoff(failures, STORE_BACKOFF)).await;
                }
            }
        }
    }

    fn adopted(&self, keys: Vec<Adopted>) {
        let inner = &*self.inner;
        {
            let mut state = inner.state.lock();
            let found = keys
                .into_iter()
                .map(|key| (key.item.key, key.is_kept.then_some(key.item.value)));
            state.found = Found::Known(found.collect());
            if matches!(state.canary, Canary::AfterAdoption) {
                self.complete(&mut state);
            }
        }
        self.check_canary();
    }
}
