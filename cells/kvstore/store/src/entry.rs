// SPDX-License-Identifier: Apache-2.0

//! What a store holds, and who observes it.

use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use skep_kvstore_client::{Cause, Key};

/// Makes typed keys and values of what is stored, and rejects what is invalid.
///
/// A decoder also checks that the value belongs under its name, such as that the cluster in it is the one that is read.
pub trait Decoder: Send + Sync + 'static {
    type Key: Clone + fmt::Debug + Send + Sync + 'static;
    type Value: Send + Sync + 'static;
    /// What the store keeps of an entry until it is gone: [`Arc<Self::Value>`](Arc), or the part of it that an observer of the
    /// deletion needs.
    type Kept: From<Arc<Self::Value>> + Send + Sync + 'static;
    type Error: std::error::Error + Send + Sync + 'static;

    /// Decodes a value. `name` is the key without the prefix of the store.
    ///
    /// # Errors
    ///
    /// If name or value are invalid. The store drops the value, and keeps the last valid one.
    fn decode(&self, name: &Key, value: &Bytes) -> Result<(Self::Key, Self::Value), Self::Error>;
}

/// Names and values as they are stored.
#[derive(Clone, Copy, Debug, Default)]
pub struct Raw;

impl Decoder for Raw {
    type Key = Key;
    type Value = Bytes;
    type Kept = Arc<Bytes>;
    type Error = Infallible;

    fn decode(&self, name: &Key, value: &Bytes) -> Result<(Key, Bytes), Infallible> {
        Ok((name.clone(), value.clone()))
    }
}

/// Observes the entries of a store. All methods return at once: the store waits for them.
pub trait Observer<K, V, Kept = Arc<V>>: Send + 'static {
    /// An entry is new or may have changed.
    fn upsert(&mut self, key: &K, value: &Arc<V>);

    /// An entry that was reported is gone. `value` is what was [kept](Decoder::Kept) of the last valid one.
    fn delete(&mut self, key: &K, value: &Kept);

    /// All entries that existed at first have been reported. Comes once, also if the store is watched again.
    fn synced(&mut self) {}

    /// A value is invalid. It is logged in any case.
    fn invalid(&mut self, entry: &InvalidEntry) {
        let _ = entry;
    }
}

/// Observes nothing: for stores that are only read.
impl<K, V, Kept> Observer<K, V, Kept> for () {
    fn upsert(&mut self, _key: &K, _value: &Arc<V>) {}

    fn delete(&mut self, _key: &K, _value: &Kept) {}
}

/// A value that was dropped: fix whatever writes it.
#[derive(Clone, Debug, thiserror::Error)]
#[error("value of `{key}` is invalid")]
pub struct InvalidEntry {
    pub key: String,
    #[source]
    pub cause: Cause,
}
