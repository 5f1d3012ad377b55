// SPDX-License-Identifier: Apache-2.0

//! Events → the last state of each object.

use std::collections::HashMap;
use std::sync::Arc;

use skep_k8s_client::{ObjectEvent, WatcherEvent};
use skep_k8s_types::{DecodeError, ObjectKey, Resource};

/// One object's events in a batch: the last valid state, and the error of an invalid one after it.
pub(crate) struct Pending<T> {
    /// The object, or that it is deleted, with its last state if that was valid.
    pub(crate) last: Option<Result<Arc<T>, Option<Arc<T>>>>,
    pub(crate) invalid: Option<DecodeError>,
}

/// The objects of a batch, each once, in the order in which they changed last.
pub(crate) struct Batch<T> {
    /// A complete list that comes before all events.
    is_list: bool,
    changes: Vec<Option<(ObjectKey, Pending<T>)>>,
    position: HashMap<ObjectKey, usize>,
}

impl<T> Default for Batch<T> {
    fn default() -> Self {
        Self {
            is_list: false,
            changes: Vec::new(),
            position: HashMap::new(),
        }
    }
}

impl<T: Resource> Batch<T> {
    pub(crate) fn is_empty(&self) -> bool {
        !self.is_list && self.position.is_empty()
    }

    pub(crate) fn is_list(&self) -> bool {
        self.is_list
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = &ObjectKey> {
        self.position.keys()
    }

    pub(crate) fn into_changes(self) -> impl Iterator<Item = (ObjectKey, Pending<T>)> {
        self.changes.into_iter().flatten()
    }

    fn push(&mut self, key: ObjectKey, pending: Pending<T>) {
        if let Some(before) = self.position.insert(key.clone(), self.changes.len()) {
            self.changes[before] = None;
        }
        self.changes.push(Some((key, pending)));
    }

    fn put(&mut self, key: ObjectKey, last: Result<Arc<T>, Option<Arc<T>>>) {
        let pending = Pending {
            last: Some(last),
            invalid: None,
        };
        self.push(key, pending);
    }

    fn put_invalid(&mut self, error: DecodeError) {
        let at = self.position.get(&*error.object).copied();
        match at.and_then(|at| self.changes[at].as_mut()) {
            Some((_, pending)) => pending.invalid = Some(error),
            None => {
                let key = (*error.object).clone();
                let pending = Pending {
                    last: None,
                    invalid: Some(error),
                };
                self.push(key, pending);
            }
        }
    }

    /// Adds an event; those that are about the connection are returned.
    pub(crate) fn add(&mut self, event: WatcherEvent<T>) -> Option<WatcherEvent<T>> {
        match event {
            WatcherEvent::Replaced { mut items, invalid } => {
                *self = Self {
                    is_list: true,
                    ..Self::default()
                };
                // As in a watch: the object that changed last is the last one.
                items.sort_by_key(|object| object.metadata().resource_version.parse().unwrap_or(u64::MAX));
                for object in items {
                    self.put(ObjectKey::of(&*object), Ok(object));
                }
                invalid.into_iter().for_each(|error| self.put_invalid(error));
            }
            WatcherEvent::Object(ObjectEvent::Applied(object)) => {
                self.put(ObjectKey::of(&*object), Ok(object));
            }
            WatcherEvent::Object(ObjectEvent::Deleted(key, last)) => self.put(key, Err(last)),
            WatcherEvent::Object(ObjectEvent::Invalid(error)) => self.put_invalid(error),
            other => return Some(other),
        }
        None
    }
}
