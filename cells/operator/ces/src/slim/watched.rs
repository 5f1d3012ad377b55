// SPDX-License-Identifier: Apache-2.0

//! Events of the objects that endpoints are made of.

use std::collections::HashSet;

use skep_identity_labels::LabelFilter;
use skep_k8s_client::{ObjectEvent, WatcherEvent};
use skep_k8s_types::slim::{CiliumIdentity, CiliumNode, Namespace, Pod, Str};
use skep_k8s_types::{ObjectKey, Resource};

use super::Pods;
use crate::slices::Slices;

#[derive(Debug, Default)]
struct Listed {
    pods: bool,
    identities: bool,
    nodes: bool,
    namespaces: bool,
}

/// Endpoints by the events that were seen.
#[derive(Debug)]
pub(crate) struct Watched {
    pods: Pods,
    listed: Listed,
    /// Pods that cannot be read: their endpoints stay as slices have them.
    unreadable: HashSet<ObjectKey>,
    has_endpoints: bool,
}

impl Watched {
    pub(crate) fn new(cluster: &str, filter: LabelFilter) -> Self {
        Self {
            pods: Pods::new(cluster, filter),
            listed: Listed::default(),
            unreadable: HashSet::new(),
            has_endpoints: false,
        }
    }

    pub(crate) fn pod(&mut self, event: WatcherEvent<Pod>) {
        match event {
            WatcherEvent::Replaced { items, invalid } => {
                self.unreadable = invalid.into_iter().map(|error| (*error.object).clone()).collect();
                let seen: HashSet<ObjectKey> = items.iter().map(|pod| ObjectKey::of(&**pod)).collect();
                let is_gone = |key: &&ObjectKey| !seen.contains(*key) && !self.unreadable.contains(*key);
                let gone: Vec<ObjectKey> = self.pods.keys().filter(is_gone).cloned().collect();
                gone.iter().for_each(|key| self.pods.remove_pod(key));
                for pod in &items {
                    self.pods.set_pod(ObjectKey::of(&**pod), pod);
                }
                self.listed.pods = true;
            }
            WatcherEvent::Object(ObjectEvent::Applied(pod)) => {
                self.pods.set_pod(ObjectKey::of(&*pod), &pod);
            }
            WatcherEvent::Object(ObjectEvent::Deleted(key, _)) => self.pods.remove_pod(&key),
            _ => {}
        }
    }

    pub(crate) fn identity(&mut self, event: WatcherEvent<CiliumIdentity>) {
        match event {
            WatcherEvent::Replaced { items, .. } => {
                let (_, known) = self.pods.nodes_and_identities();
                gone(&known, &items).for_each(|name| self.pods.remove_identity(name));
                items.iter().for_each(|identity| self.pods.set_identity(identity));
                self.listed.identities = true;
            }
            WatcherEvent::Object(ObjectEvent::Applied(identity)) => self.pods.set_identity(&identity),
            WatcherEvent::Object(ObjectEvent::Deleted(key, _)) => self.pods.remove_identity(&key.name),
            _ => {}
        }
    }

    pub(crate) fn node(&mut self, event: &WatcherEvent<CiliumNode>) {
        match event {
            WatcherEvent::Replaced { items, .. } => {
                let (known, _) = self.pods.nodes_and_identities();
                gone(&known, items).for_each(|name| self.pods.remove_node(name));
                items.iter().for_each(|node| self.pods.set_node(node));
                self.listed.nodes = true;
            }
            WatcherEvent::Object(ObjectEvent::Applied(node)) => self.pods.set_node(node),
            WatcherEvent::Object(ObjectEvent::Deleted(key, _)) => self.pods.remove_node(&key.name),
            _ => {}
        }
    }

    /// The pods of a namespace go before it: a deletion changes nothing.
    pub(crate) fn namespace(&mut self, event: &WatcherEvent<Namespace>) {
        let mut set = |namespace: &Namespace| {
            let metadata = &namespace.metadata;
            self.pods.set_namespace(&metadata.name, &metadata.labels);
        };
        match event {
            WatcherEvent::Replaced { items, .. } => {
                items.iter().for_each(|namespace| set(namespace));
                self.listed.namespaces = true;
            }
            WatcherEvent::Object(ObjectEvent::Applied(namespace)) => set(namespace),
            _ => {}
        }
    }

    /// Changes slices to what was seen; returns whether all objects were listed. Nothing is changed before.
    pub(crate) fn settle(&mut self, slices: &mut Slices) -> bool {
        let Listed {
            pods,
            identities,
            nodes,
            namespaces,
        } = self.listed;
        if !(pods && identities && nodes && namespaces) {
            return false;
        }
        let changed = self.pods.take_changed();
        if !self.has_endpoints {
            self.has_endpoints = true;
            let entries = self.pods.keys().map(|key| (key.clone(), self.pods.entry(key)));
            slices.replace_endpoints(entries, &self.unreadable);
            return true;
        }
        for key in changed {
            match self.pods.entry(&key) {
                Some(entry) => slices.upsert(key, entry),
                // It stays as it was while its node or its identity is missing.
                None if self.pods.contains(&key) => {}
                None => slices.delete(&key),
            }
        }
        true
    }
}

/// Names that are not in a list.
fn gone<'a, T: Resource>(known: &'a [Str], items: &[std::sync::Arc<T>]) -> impl Iterator<Item = &'a Str> {
    let seen: HashSet<Str> = items
        .iter()
        .map(|object| object.metadata().name.clone())
        .collect();
    known.iter().filter(move |name| !seen.contains(*name))
}
