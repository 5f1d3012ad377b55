// SPDX-License-Identifier: Apache-2.0

//! Watched objects of one kind, as they were last valid.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use skep_k8s_client::{ApiError, ObjectEvent, WatcherEvent};
use skep_k8s_types::{DecodeError, ObjectKey, Resource};

use crate::object::is_older;

#[derive(Debug)]
pub(crate) struct Store<T> {
    objects: BTreeMap<ObjectKey, Arc<T>>,
    /// Objects that exist and cannot be read; the last valid state of them, if there was one, is in `objects`.
    invalid: BTreeMap<ObjectKey, DecodeError>,
    is_complete: bool,
    failing: Option<Arc<ApiError>>,
}

impl<T> Default for Store<T> {
    fn default() -> Self {
        Self {
            objects: BTreeMap::new(),
            invalid: BTreeMap::new(),
            is_complete: false,
            failing: None,
        }
    }
}

impl<T: Resource> Store<T> {
    pub(crate) fn get(&self, key: &ObjectKey) -> Option<&Arc<T>> {
        self.objects.get(key)
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = &ObjectKey> {
        self.objects.keys()
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// Why an object cannot be read.
    pub(crate) fn invalid(&self, key: &ObjectKey) -> Option<&DecodeError> {
        self.invalid.get(key)
    }

    pub(crate) fn faults(&self) -> impl Iterator<Item = String> {
        let failing = self.failing.iter().map(|error| {
            let error = hive::error_chain(&**error);
            format!("cannot watch {}: {error}", T::kind().plural)
        });
        failing.chain(self.invalid.values().map(ToString::to_string))
    }

    /// Takes over an event; calls `changed` with the old and the new state of each object that it is about.
    pub(crate) fn handle(
        &mut self,
        event: WatcherEvent<T>,
        mut changed: impl FnMut(&ObjectKey, Option<&Arc<T>>, Option<&Arc<T>>),
    ) {
        match event {
            WatcherEvent::Failing(error) => self.failing = Some(error),
            WatcherEvent::Working => self.failing = None,
            // Only of lists in pages.
            WatcherEvent::InitPage { .. } | WatcherEvent::InitDone => {}
            WatcherEvent::Object(ObjectEvent::Applied(object)) => self.apply(object, changed),
            WatcherEvent::Object(ObjectEvent::Deleted(key, _)) => self.delete(&key, changed),
            WatcherEvent::Object(ObjectEvent::Invalid(error)) => {
                let key = (*error.object).clone();
                self.invalid.insert(key.clone(), error);
                let object = self.objects.get(&key);
                changed(&key, object, object);
            }
            WatcherEvent::Replaced { items, invalid } => {
                self.is_complete = true;
                self.invalid = invalid
                    .into_iter()
                    .map(|error| ((*error.object).clone(), error))
                    .collect();
                let new: BTreeMap<ObjectKey, Arc<T>> = items
                    .into_iter()
                    .map(|object| (ObjectKey::of(&*object), object))
                    .collect();
                let is_gone = |key: &&ObjectKey| !new.contains_key(*key) && !self.invalid.contains_key(*key);
                let gone: Vec<ObjectKey> = self.objects.keys().filter(is_gone).cloned().collect();
                for key in gone {
                    let old = self.objects.remove(&key);
                    changed(&key, old.as_ref(), None);
                }
                for (key, object) in new {
                    let old = self.objects.insert(key.clone(), object.clone());
                    changed(&key, old.as_ref(), Some(&object));
                }
                for key in self.invalid.keys() {
                    let object = self.objects.get(key);
                    changed(key, object, object);
                }
            }
        }
    }

    /// Takes over an object, unless a newer version of it is known.
    pub(crate) fn apply(
        &mut self,
        object: Arc<T>,
        mut changed: impl FnMut(&ObjectKey, Option<&Arc<T>>, Option<&Arc<T>>),
    ) {
        let key = ObjectKey::of(&*object);
        let old = match self.objects.entry(key.clone()) {
            Entry::Occupied(mut entry) => {
                let (old, new) = (entry.get().metadata(), object.metadata());
                if old.uid == new.uid && is_older(&new.resource_version, &old.resource_version) {
                    return;
                }
                Some(entry.insert(object.clone()))
            }
            Entry::Vacant(entry) => {
                entry.insert(object.clone());
                None
            }
        };
        self.invalid.remove(&key);
        changed(&key, old.as_ref(), Some(&object));
    }

    pub(crate) fn delete(
        &mut self,
        key: &ObjectKey,
        mut changed: impl FnMut(&ObjectKey, Option<&Arc<T>>, Option<&Arc<T>>),
    ) {
        self.invalid.remove(key);
        if let Some(old) = self.objects.remove(key) {
            changed(key, Some(&old), None);
        }
    }
}
