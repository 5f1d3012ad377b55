// SPDX-License-Identifier: Apache-2.0

//! Objects as a watcher reports them.

use std::collections::BTreeMap;
use std::collections::btree_map::Values;
use std::sync::Arc;

use skep_k8s_client::{ObjectEvent, WatchState, WatcherEvent};
use skep_k8s_types::{ObjectKey, Resource};

/// The last valid state of all objects of a kind. An object that becomes invalid keeps its last valid state, and is named in
/// [`watch`](Self::watch).
#[derive(Debug)]
pub struct Store<T> {
    objects: BTreeMap<ObjectKey, Arc<T>>,
    watch: WatchState,
}

/// A change of one object: it is new, has changed or is deleted.
#[derive(Debug)]
pub struct Change<T> {
    pub key: ObjectKey,
    /// Its state before, if there was one.
    pub old: Option<Arc<T>>,
    /// Its state now; `None` if it is deleted.
    pub new: Option<Arc<T>>,
}

impl<T> Default for Store<T> {
    fn default() -> Self {
        Self {
            objects: BTreeMap::new(),
            watch: WatchState::default(),
        }
    }
}

impl<T: Resource> Store<T> {
    /// Takes in an event; returns the changes.
    pub(crate) fn apply(&mut self, event: WatcherEvent<T>) -> Vec<Change<T>> {
        self.watch.note(&event);
        match event {
            WatcherEvent::Replaced { items, invalid } => {
                let mut before = std::mem::take(&mut self.objects);
                // What an invalid object was before counts.
                for error in &invalid {
                    let kept = before.remove_entry(&*error.object);
                    self.objects.extend(kept);
                }
                let mut changes: Vec<Change<T>> = items
                    .into_iter()
                    .map(|item| {
                        let key = ObjectKey::of(&*item);
                        let old = before.remove(&key);
                        self.objects.insert(key.clone(), item.clone());
                        let new = Some(item);
                        Change { key, old, new }
                    })
                    .collect();
                changes.extend(before.into_iter().map(|(key, old)| Change {
                    key,
                    old: Some(old),
                    new: None,
                }));
                changes
            }
            WatcherEvent::Object(ObjectEvent::Applied(item)) => {
                let key = ObjectKey::of(&*item);
                let old = self.objects.insert(key.clone(), item.clone());
                let new = Some(item);
                vec![Change { key, old, new }]
            }
            WatcherEvent::Object(ObjectEvent::Deleted(key, _)) => {
                let old = self.objects.remove(&key);
                vec![Change { key, old, new: None }]
            }
            WatcherEvent::Object(ObjectEvent::Invalid(_))
            | WatcherEvent::InitPage { .. }
            | WatcherEvent::InitDone
            | WatcherEvent::Failing(_)
            | WatcherEvent::Working => Vec::new(),
        }
    }

    pub fn get(&self, key: &ObjectKey) -> Option<&Arc<T>> {
        self.objects.get(key)
    }

    /// Returns all objects, in the order of their keys.
    pub fn objects(&self) -> Values<'_, ObjectKey, Arc<T>> {
        self.objects.values()
    }

    /// Returns the keys of all objects.
    pub fn keys(&self) -> impl ExactSizeIterator<Item = &ObjectKey> {
        self.objects.keys()
    }

    /// Connection of the watcher, and objects that are invalid.
    pub fn watch(&self) -> &WatchState {
        &self.watch
    }

    /// Whether objects are missing because they have never been valid.
    pub fn has_gaps(&self) -> bool {
        let mut invalid = self.watch.invalid().keys();
        invalid.any(|key| !self.objects.contains_key(key))
    }
}
