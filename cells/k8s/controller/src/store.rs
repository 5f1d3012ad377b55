// SPDX-License-Identifier: Apache-2.0

//! Objects as a watcher reports them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use skep_k8s_client::{ObjectEvent, WatchState, WatcherEvent};
use skep_k8s_types::slim::Metadata;
use skep_k8s_types::{ObjectKey, Resource};

/// The last valid state of all objects of a kind. An object that becomes invalid keeps its last valid state, and is named in
/// [`watch`](Self::watch).
#[derive(Debug)]
pub struct Store<T> {
    /// By key; without states in a store that keeps keys alone.
    objects: BTreeMap<ObjectKey, Option<Arc<T>>>,
    has_states: bool,
    watch: WatchState,
    /// The highest version of events.
    seen: u64,
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
            has_states: true,
            watch: WatchState::default(),
            seen: 0,
        }
    }
}

impl<T: Resource> Store<T> {
    /// A store that keeps the keys of objects, not their states: for controllers that keep what they need of them.
    /// [`Change::old`] is always `None`.
    pub fn of_keys() -> Self {
        Self {
            has_states: false,
            ..Self::default()
        }
    }

    /// Takes in an event; returns the changes. Those of a list are in the order of keys, deletions first.
    pub fn apply(&mut self, event: WatcherEvent<T>) -> Vec<Change<T>> {
        // Objects that were never valid, too.
        let before: BTreeSet<ObjectKey> = match &event {
            WatcherEvent::Replaced { .. } => {
                self.keys().chain(self.watch.invalid().keys()).cloned().collect()
            }
            _ => BTreeSet::new(),
        };
        self.watch.note(&event);
        let seen = match &event {
            WatcherEvent::Replaced { items, .. } => items.iter().filter_map(|item| version(&**item)).max(),
            WatcherEvent::Object(event) => event.resource_version().parse().ok(),
            _ => None,
        };
        self.seen = self.seen.max(seen.unwrap_or_default());
        match event {
            WatcherEvent::Replaced { items, .. } => {
                let items = items.into_iter().map(|item| (ObjectKey::of(&*item), item));
                let items: BTreeMap<ObjectKey, Arc<T>> = items.collect();
                let is_gone = |key: &&ObjectKey| !items.contains_key(*key) && !self.is_invalid(key);
                let gone: Vec<&ObjectKey> = before.iter().filter(is_gone).collect();
                let mut changes: Vec<Change<T>> = gone.into_iter().map(|key| self.deleted(key)).collect();
                changes.extend(items.into_values().filter_map(|item| self.upserted(item)));
                changes
            }
            WatcherEvent::Object(ObjectEvent::Applied(item)) => self.upserted(item).into_iter().collect(),
            WatcherEvent::Object(ObjectEvent::Deleted(key, _)) => vec![self.deleted(&key)],
            WatcherEvent::Object(ObjectEvent::Invalid(_))
            | WatcherEvent::InitPage { .. }
            | WatcherEvent::InitDone
            | WatcherEvent::Failing(_)
            | WatcherEvent::Working => Vec::new(),
        }
    }

    /// Takes in an object, unless a newer version of it is known: also the answer to a write, so that older events are ignored.
    pub fn upserted(&mut self, object: Arc<T>) -> Option<Change<T>> {
        let key = ObjectKey::of(&*object);
        if self.get(&key).is_some_and(|old| is_older(&*object, &**old)) {
            return None;
        }
        let state = self.has_states.then(|| object.clone());
        let old = self.objects.insert(key.clone(), state).flatten();
        let new = Some(object);
        Some(Change { key, old, new })
    }

    /// Takes in the answer to a write, unless the watch has come further: the object may be deleted.
    pub fn written(&mut self, object: Arc<T>) -> Option<Change<T>> {
        let key = ObjectKey::of(&*object);
        let known = self.get(&key).filter(|_| !self.is_invalid(&key));
        let known = known.map_or(Some(self.seen), |known| version(&**known));
        let is_known = version(&*object)
            .zip(known)
            .is_some_and(|(new, known)| new <= known);
        if is_known { None } else { self.upserted(object) }
    }

    /// Takes in the answer to the deletion of an object, unless there is another one of that name.
    pub fn removed(&mut self, metadata: &Metadata) -> Option<Change<T>> {
        let key = ObjectKey {
            namespace: metadata.namespace.clone(),
            name: metadata.name.clone(),
        };
        let known = self.get(&key)?;
        (known.metadata().uid == metadata.uid).then(|| self.deleted(&key))
    }

    /// Takes in the deletion of an object.
    pub fn deleted(&mut self, key: &ObjectKey) -> Change<T> {
        Change {
            key: key.clone(),
            old: self.objects.remove(key).flatten(),
            new: None,
        }
    }

    pub fn get(&self, key: &ObjectKey) -> Option<&Arc<T>> {
        self.objects.get(key)?.as_ref()
    }

    /// Returns all objects, in the order of their keys.
    pub fn objects(&self) -> impl Iterator<Item = &Arc<T>> {
        self.objects.values().flatten()
    }

    /// Returns the keys of all objects that have been valid.
    pub fn keys(&self) -> impl ExactSizeIterator<Item = &ObjectKey> {
        self.objects.keys()
    }

    /// Connection of the watcher, and objects that are invalid.
    pub fn watch(&self) -> &WatchState {
        &self.watch
    }

    pub fn is_invalid(&self, key: &ObjectKey) -> bool {
        self.watch.invalid().contains_key(key)
    }

    /// Whether objects are missing because they have never been valid.
    pub fn has_gaps(&self) -> bool {
        let mut invalid = self.watch.invalid().keys();
        invalid.any(|key| !self.objects.contains_key(key))
    }
}

fn version(object: &impl Resource) -> Option<u64> {
    object.metadata().resource_version.parse().ok()
}

fn is_older<T: Resource>(one: &T, other: &T) -> bool {
    let versions = version(one).zip(version(other));
    one.metadata().uid == other.metadata().uid && versions.is_some_and(|(one, other)| one < other)
}
