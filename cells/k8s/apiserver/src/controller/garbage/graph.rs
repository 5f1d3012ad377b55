// SPDX-License-Identifier: Apache-2.0

//! Who says that whom owns it: names only, the objects are in the store.

use std::collections::{BTreeSet, HashMap, VecDeque};

use compact_str::CompactString;
use serde_json::Value;
use skep_k8s_memory::{object, split_api_version};

/// Most uids of deleted objects that are remembered.
const REMEMBERED: usize = 1000;

/// An object by name. The version is left out: an object is the same in all of them.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Key {
    pub(super) group: CompactString,
    pub(super) kind: CompactString,
    pub(super) namespace: CompactString,
    pub(super) name: CompactString,
}

impl Key {
    pub(super) fn of(object: &Value) -> Self {
        Key {
            group: split_api_version(object::text(object, &["apiVersion"])).0.into(),
            kind: object::text(object, &["kind"]).into(),
            namespace: object::namespace(object).into(),
            name: object::name(object).into(),
        }
    }

    /// What an owner reference of an object in `namespace` may mean: an object in the same one, or in none.
    fn meant(reference: &Value, namespace: &CompactString) -> [Self; 2] {
        let in_namespace = |namespace: CompactString| Key {
            group: split_api_version(object::text(reference, &["apiVersion"]))
                .0
                .into(),
            kind: object::text(reference, &["kind"]).into(),
            namespace,
            name: object::text(reference, &["name"]).into(),
        };
        [
            in_namespace(namespace.clone()),
            in_namespace(CompactString::default()),
        ]
    }
}

/// The owner references of an object.
pub(super) fn owners(object: &Value) -> &[Value] {
    object::items(object, &["metadata", "ownerReferences"])
}

#[derive(Debug, Default)]
pub(super) struct Graph {
    /// By owner.
    dependents: HashMap<Key, BTreeSet<Key>>,
    /// By dependent.
    owners: HashMap<Key, BTreeSet<Key>>,
    /// Uids of objects that were seen going, the oldest first.
    gone: VecDeque<CompactString>,
}

impl Graph {
    /// Takes over who owns `dependent`; returns the owners that it had and has no longer.
    pub(super) fn set(&mut self, dependent: &Key, object: &Value) -> Vec<Key> {
        let now: BTreeSet<Key> = owners(object)
            .iter()
            .flat_map(|reference| Key::meant(reference, &dependent.namespace))
            .collect();
        if now.is_empty() {
            return self.remove(dependent);
        }
        let before = self.owners.get(dependent).cloned().unwrap_or_default();
        let left: Vec<Key> = before.difference(&now).cloned().collect();
        for owner in &left {
            self.part(owner, dependent);
        }
        for owner in now.difference(&before) {
            self.dependents
                .entry(owner.clone())
                .or_default()
                .insert(dependent.clone());
        }
        self.owners.insert(dependent.clone(), now);
        left
    }

    /// Forgets a dependent; returns the owners that it had.
    pub(super) fn remove(&mut self, dependent: &Key) -> Vec<Key> {
        let before = self.owners.remove(dependent).unwrap_or_default();
        for owner in &before {
            self.part(owner, dependent);
        }
        before.into_iter().collect()
    }

    fn part(&mut self, owner: &Key, dependent: &Key) {
        if let Some(dependents) = self.dependents.get_mut(owner) {
            dependents.remove(dependent);
            if dependents.is_empty() {
                self.dependents.remove(owner);
            }
        }
    }

    /// Who names `owner` as an owner.
    pub(super) fn dependents(&self, owner: &Key) -> BTreeSet<Key> {
        self.dependents.get(owner).cloned().unwrap_or_default()
    }

    /// Remembers that the object with this uid is gone, also when its kind is gone with it.
    pub(super) fn note_gone(&mut self, uid: &str) {
        if self.gone.len() == REMEMBERED {
            self.gone.pop_front();
        }
        self.gone.push_back(uid.into());
    }

    pub(super) fn is_gone(&self, uid: &str) -> bool {
        self.gone.iter().any(|gone| gone == uid)
    }
}
