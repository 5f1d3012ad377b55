// SPDX-License-Identifier: Apache-2.0

//! Events that are written in one transaction: the last state of each object, in the order of the first event of it.
//!
//! Services and slices arrive on two watches. Where the API server says which change came first, that order is kept.

use std::hash::BuildHasher;

use foldhash::fast::RandomState;
use hashbrown::HashTable;
use skep_k8s_client::ObjectEvent;
use skep_k8s_types::ObjectKey;
use skep_k8s_types::slim::{EndpointSlice, Service, Str};

/// Events in one batch at most.
pub const MAX_BATCH: usize = 500;

/// An event of a service or an endpoint slice.
#[derive(Debug, Clone)]
pub enum Event {
    /// Of a service.
    Service(ObjectEvent<Service>),
    /// Of an endpoint slice.
    Slice(ObjectEvent<EndpointSlice>),
}

impl Event {
    /// Which object.
    pub fn key(&self) -> ObjectKey {
        match self {
            Self::Service(event) => event.key(),
            Self::Slice(event) => event.key(),
        }
    }

    /// Version of an object that is there, if the API server gave it one.
    fn version(&self) -> Option<u64> {
        let text = match self {
            Self::Service(event @ ObjectEvent::Applied(_)) => event.resource_version(),
            Self::Slice(event @ ObjectEvent::Applied(_)) => event.resource_version(),
            _ => "",
        };
        text.parse().ok()
    }

    fn id(&self) -> (bool, (&Str, &Str)) {
        match self {
            Self::Service(event) => (false, event.name()),
            Self::Slice(event) => (true, event.name()),
        }
    }
}

/// Events of objects, one of each. Holds references to objects, not copies.
#[derive(Debug, Default)]
pub struct Batch {
    /// Each with the version of its first event.
    changes: Vec<(u64, Event)>,
    /// The highest version so far, and whether all came in this order.
    highest: u64,
    is_mixed: bool,
    /// Places in `changes`, by object.
    places: HashTable<usize>,
    hasher: RandomState,
    events: usize,
}

impl Batch {
    /// Adds an event; replaces an earlier one of the same object. One without a version comes after all that are there.
    pub fn push(&mut self, event: Event) {
        let version = event.version();
        self.push_at(event, version);
    }

    /// Adds an object of a list, which is in no order of versions.
    pub(super) fn push_listed(&mut self, event: Event) {
        self.push_at(event, None);
    }

    fn push_at(&mut self, event: Event, version: Option<u64>) {
        self.events += 1;
        let version = version.unwrap_or(self.highest);
        let Self {
            changes,
            places,
            hasher,
            ..
        } = self;
        let hash = hasher.hash_one(event.id());
        match places.find(hash, |&place| changes[place].1.id() == event.id()) {
            Some(&place) => changes[place].1 = event,
            None => {
                places.insert_unique(hash, changes.len(), |&place| {
                    hasher.hash_one(changes[place].1.id())
                });
                changes.push((version, event));
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

    /// Takes the events out, in order of the first event of each object.
    pub fn drain(&mut self) -> impl ExactSizeIterator<Item = Event> {
        if std::mem::take(&mut self.is_mixed) {
            self.changes.sort_by_key(|(version, _)| *version);
        }
        self.places.clear();
        self.events = 0;
        self.highest = 0;
        self.changes.drain(..).map(|(_, event)| event)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn service(name: &str, version: &str) -> Event {
        let mut service = Service::default();
        service.metadata.name = name.into();
        service.metadata.resource_version = version.into();
        Event::Service(ObjectEvent::Applied(Arc::new(service)))
    }

    #[test]
    fn keeps_the_last_state_at_the_first_place() {
        let mut batch = Batch::default();
        batch.push(service("a", "1"));
        batch.push(service("b", "2"));
        batch.push(service("a", "3"));
        batch.push(Event::Slice(ObjectEvent::Deleted(
            ObjectKey {
                namespace: "".into(),
                name: "a".into(),
            },
            None,
        )));

        let versions: Vec<String> = batch
            .drain()
            .map(|event| match event {
                Event::Service(ObjectEvent::Applied(service)) => {
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
        batch.push(service("a", "7"));
        batch.push(service("gone", ""));
        batch.push(service("b", "9"));
        batch.push(service("c", "8"));
        batch.push(service("a", "10"));

        let names: Vec<String> = batch.drain().map(|event| event.key().to_string()).collect();
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
