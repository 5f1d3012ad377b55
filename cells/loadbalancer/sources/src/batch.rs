// SPDX-License-Identifier: Apache-2.0

//! Events that are written in one transaction: the last state of each object, in the order of the first event of it.
//!
//! Services and slices arrive on two watches. Where the API server says which change came first, that order is kept.

use std::hash::BuildHasher;
use std::sync::Arc;

use foldhash::fast::RandomState;
use hashbrown::HashTable;
use skep_k8s::slim::{EndpointSlice, Service};
use skep_k8s::{DecodeError, ObjectKey};

/// Events in one batch at most.
pub const MAX_BATCH: usize = 500;

/// What an object is now.
#[derive(Debug, Clone)]
pub enum Latest<T> {
    /// There, with this content.
    Present(Arc<T>),
    /// Gone.
    Gone,
    /// There, but it can't be decoded: what is known of it stays.
    Undecodable(DecodeError),
}

/// An object that changed.
#[derive(Debug, Clone)]
pub enum Changed {
    /// A service.
    Service(ObjectKey, Latest<Service>),
    /// An endpoint slice.
    Slice(ObjectKey, Latest<EndpointSlice>),
}

impl Changed {
    /// Which object.
    pub fn key(&self) -> &ObjectKey {
        self.id().1
    }

    fn id(&self) -> (bool, &ObjectKey) {
        match self {
            Self::Service(key, _) => (false, key),
            Self::Slice(key, _) => (true, key),
        }
    }
}

/// Changed objects, each once. Holds references to objects, not copies.
#[derive(Debug, Default)]
pub struct Batch {
    /// Each with the version of its first event.
    changes: Vec<(u64, Changed)>,
    /// The highest version so far, and whether all came in this order.
    highest: u64,
    is_mixed: bool,
    /// Places in `changes`, by object.
    places: HashTable<usize>,
    hasher: RandomState,
    events: usize,
}

impl Batch {
    /// Adds an event; replaces an earlier one of the same object.
    pub fn push(&mut self, changed: Changed) {
        self.push_version(changed, None);
    }

    /// Adds an event of this resource version; replaces an earlier one of the same object. Without a version it comes
    /// after all that are there.
    pub(super) fn push_version(&mut self, changed: Changed, version: Option<u64>) {
        self.events += 1;
        let version = version.unwrap_or(self.highest);
        let Self {
            changes,
            places,
            hasher,
            ..
        } = self;
        let hash = hasher.hash_one(changed.id());
        match places.find(hash, |&place| changes[place].1.id() == changed.id()) {
            Some(&place) => changes[place].1 = changed,
            None => {
                places.insert_unique(hash, changes.len(), |&place| {
                    hasher.hash_one(changes[place].1.id())
                });
                changes.push((version, changed));
                self.is_mixed |= version < self.highest;
                self.highest = self.highest.max(version);
            }
        }
    }

    /// Whether it is time to write: enough events were added.
    pub fn is_full(&self) -> bool {
        self.events >= MAX_BATCH
    }

    /// Whether there is nothing to write.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// Takes the changes out, in order of the first event of each object.
    pub fn drain(&mut self) -> impl ExactSizeIterator<Item = Changed> {
        if std::mem::take(&mut self.is_mixed) {
            self.changes.sort_by_key(|(version, _)| *version);
        }
        self.places.clear();
        self.events = 0;
        self.highest = 0;
        self.changes.drain(..).map(|(_, changed)| changed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service(name: &str, version: &str) -> Changed {
        let mut service = Service::default();
        service.metadata.name = name.into();
        service.metadata.resource_version = version.into();
        Changed::Service(ObjectKey::of(&service), Latest::Present(Arc::new(service)))
    }

    #[test]
    fn keeps_the_last_state_at_the_first_place() {
        let mut batch = Batch::default();
        batch.push(service("a", "1"));
        batch.push(service("b", "2"));
        batch.push(service("a", "3"));
        batch.push(Changed::Slice(
            ObjectKey {
                namespace: "".into(),
                name: "a".into(),
            },
            Latest::Gone,
        ));

        let versions: Vec<String> = batch
            .drain()
            .map(|changed| match changed {
                Changed::Service(_, Latest::Present(service)) => {
                    service.metadata.resource_version.to_string()
                }
                _ => "slice".to_owned(),
            })
            .collect();
        assert_eq!(versions, ["3", "2", "slice"]);
        assert!(batch.is_empty());
    }

    #[test]
    fn keeps_the_order_of_versions_across_watches() {
        let mut batch = Batch::default();
        batch.push_version(service("a", "7"), Some(7));
        batch.push(service("gone", ""));
        batch.push_version(service("b", "9"), Some(9));
        batch.push_version(service("c", "8"), Some(8));
        batch.push_version(service("a", "10"), Some(10));

        let names: Vec<String> = batch.drain().map(|changed| changed.key().to_string()).collect();
        assert_eq!(names, ["a", "gone", "c", "b"]);
    }

    #[test]
    fn is_full_after_many_events_of_one_object() {
        let mut batch = Batch::default();
        (0..MAX_BATCH).for_each(|_| batch.push(service("a", "1")));
        assert!(batch.is_full());
        assert_eq!(batch.drain().len(), 1);
        assert!(!batch.is_full());
    }
}
