// SPDX-License-Identifier: Apache-2.0

//! What the controller knows, and which services it has to look at.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use serde_json::Value;
use skep_k8s_memory::{LabelSelector, object};

use super::super::follow::News;
use super::place::{Change, place};
use super::{MANAGER, desired};

/// Namespace and name.
pub(super) type Key = (String, String);

/// Where news comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    Services,
    Pods,
    Nodes,
    Slices,
}

#[derive(Default)]
pub(super) struct World {
    services: BTreeMap<Key, (Arc<Value>, LabelSelector)>,
    pods: BTreeMap<Key, Arc<Value>>,
    /// Zones of nodes.
    zones: HashMap<String, String>,
    /// Our slices by service.
    slices: HashMap<Key, BTreeMap<String, Arc<Value>>>,
    dirty: BTreeSet<Key>,
    heard: [bool; 4],
}

fn key(object: &Value) -> Key {
    (
        object::namespace(object).to_owned(),
        object::name(object).to_owned(),
    )
}

/// The service a slice belongs to, if it is one of ours.
fn owner(slice: &Value) -> Option<Key> {
    if object::label(slice, "endpointslice.kubernetes.io/managed-by") != Some(MANAGER) {
        return None;
    }
    let service = object::label(slice, "kubernetes.io/service-name")?;
    Some((object::namespace(slice).to_owned(), service.to_owned()))
}

fn zone(node: &Value) -> String {
    object::label(node, "topology.kubernetes.io/zone")
        .unwrap_or_default()
        .to_owned()
}

impl World {
    pub(super) fn learn(&mut self, source: Source, news: News) {
        match (source, news) {
            (Source::Services, News::All(objects)) => {
                let gone: Vec<Key> = self.services.keys().cloned().collect();
                self.dirty.extend(gone);
                self.services.clear();
                for object in objects {
                    self.service(object);
                }
            }
            (Source::Services, News::Is(object)) => self.service(object),
            (Source::Services, News::Gone(object)) => {
                self.services.remove(&key(&object));
                self.dirty.insert(key(&object));
            }
            (Source::Pods, News::All(objects)) => {
                let old = std::mem::take(&mut self.pods);
                for object in old.values().chain(&objects) {
                    self.pod_changed(object);
                }
                self.pods = objects.into_iter().map(|o| (key(&o), o)).collect();
            }
            (Source::Pods, News::Is(object)) => {
                if let Some(old) = self.pods.insert(key(&object), object.clone()) {
                    self.pod_changed(&old);
                }
                self.pod_changed(&object);
            }
            (Source::Pods, News::Gone(object)) => {
                self.pods.remove(&key(&object));
                self.pod_changed(&object);
            }
            (Source::Nodes, News::All(objects)) => {
                let zones = objects
                    .iter()
                    .map(|o| (object::name(o).to_owned(), zone(o)))
                    .collect();
                if self.zones != zones {
                    self.zones = zones;
                    self.dirty.extend(self.services.keys().cloned());
                }
            }
            (Source::Nodes, News::Is(object)) => {
                let zone = zone(&object);
                let old = self.zones.insert(object::name(&object).to_owned(), zone.clone());
                if old.as_ref() != Some(&zone) && !(old.is_none() && zone.is_empty()) {
                    self.node_changed(object::name(&object));
                }
            }
            (Source::Nodes, News::Gone(object)) => {
                self.zones.remove(object::name(&object));
                self.node_changed(object::name(&object));
            }
            (Source::Slices, News::All(objects)) => {
                self.slices.clear();
                for object in objects {
                    if let Some(service) = owner(&object) {
                        self.dirty.insert(service);
                    }
                    self.remember_slice(&object);
                }
                self.dirty.extend(self.services.keys().cloned());
            }
            (Source::Slices, News::Is(object)) => {
                // What we wrote ourselves is known.
                let known = owner(&object)
                    .and_then(|service| self.slices.get(&service)?.get(object::name(&object)).cloned());
                let version = |o: &Value| object::resource_version(o).parse::<u64>().unwrap_or(0);
                if known.as_ref().is_none_or(|k| version(k) < version(&object)) {
                    self.remember_slice(&object);
                    self.dirty.extend(owner(&object));
                }
            }
            (Source::Slices, News::Gone(object)) => {
                self.forget_slice(&object);
                self.dirty.extend(owner(&object));
            }
        }
        self.heard[source as usize] = true;
    }

    fn service(&mut self, object: Arc<Value>) {
        let selector = LabelSelector::of_map(object::at(&object, &["spec", "selector"]));
        self.dirty.insert(key(&object));
        self.services.insert(key(&object), (object, selector));
    }

    fn pod_changed(&mut self, pod: &Value) {
        let namespace = object::namespace(pod);
        let from = (namespace.to_owned(), String::new());
        let dirty: Vec<Key> = self
            .services
            .range(from..)
            .take_while(|((n, _), _)| n == namespace)
            .filter(|(_, (_, selector))| !selector.is_empty() && selector.matches(pod))
            .map(|(key, _)| key.clone())
            .collect();
        self.dirty.extend(dirty);
    }

    fn node_changed(&mut self, node: &str) {
        let pods: Vec<Arc<Value>> = self
            .pods
            .values()
            .filter(|pod| object::text(pod, &["spec", "nodeName"]) == node)
            .cloned()
            .collect();
        for pod in pods {
            self.pod_changed(&pod);
        }
    }

    pub(super) fn remember_slice(&mut self, slice: &Arc<Value>) {
        if let Some(service) = owner(slice) {
            self.slices
                .entry(service)
                .or_default()
                .insert(object::name(slice).to_owned(), slice.clone());
        }
    }

    pub(super) fn forget_slice(&mut self, slice: &Value) {
        let Some(service) = owner(slice) else { return };
        if let Some(slices) = self.slices.get_mut(&service) {
            slices.remove(object::name(slice));
            if slices.is_empty() {
                self.slices.remove(&service);
            }
        }
    }

    /// A service to look at; none before everything was heard once.
    pub(super) fn next_dirty(&mut self) -> Option<Key> {
        if !self.heard.iter().all(|h| *h) {
            return None;
        }
        self.dirty.pop_first()
    }

    pub(super) fn again(&mut self, key: Key) {
        self.dirty.insert(key);
    }

    /// What has to change for a service.
    pub(super) fn changes(&self, service: &Key) -> Vec<Change> {
        let existing: Vec<Arc<Value>> = self
            .slices
            .get(service)
            .into_iter()
            .flat_map(|s| s.values().cloned())
            .collect();
        let Some((object, selector)) = self.services.get(service) else {
            return existing.into_iter().map(Change::Delete).collect();
        };
        if object::text(object, &["spec", "type"]) == "ExternalName" || object::is_terminating(object) {
            return existing.into_iter().map(Change::Delete).collect();
        }
        if selector.is_empty() {
            // Others make the endpoints of services without selector.
            return Vec::new();
        }
        let from = (service.0.clone(), String::new());
        let pods = self
            .pods
            .range(from..)
            .take_while(|((n, _), _)| *n == service.0)
            .map(|(_, pod)| pod)
            .filter(|pod| selector.matches(pod));
        let groups = desired::groups(object, pods, &self.zones);
        place(object, groups, existing)
    }
}
