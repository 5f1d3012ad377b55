// SPDX-License-Identifier: Apache-2.0

//! What is known of the cluster, and which services an object is about.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use skep_clustermesh_types::{SERVICE_NAME_LABEL, ServiceExport};
use skep_k8s_types::ObjectKey;
use skep_k8s_types::slim::{Metadata, Namespace, Str};

use super::names;
use super::plan::plan;
use super::view::{Copied, Plan, Target, View};
use super::write::Written;
use crate::namespace;
use crate::object::{ExportObject, ImportObject, ServiceObject, SliceObject};
use crate::store::Store;

/// What is known of the cluster.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) cluster: String,
    /// Whether namespaces are shared that do not say so.
    pub(crate) shares_namespaces: bool,
    pub(crate) exports: Store<ExportObject>,
    pub(crate) imports: Store<ImportObject>,
    pub(crate) services: Store<ServiceObject>,
    pub(crate) slices: Store<SliceObject>,
    pub(crate) namespaces: Store<Namespace>,
    /// Slices by the service that their label names.
    slices_of: BTreeMap<ObjectKey, BTreeSet<Str>>,
    copied: BTreeMap<ObjectKey, Copied>,
}

pub(crate) type Dirty = BTreeSet<ObjectKey>;

fn key(namespace: &Str, name: impl AsRef<str>) -> ObjectKey {
    ObjectKey {
        namespace: namespace.clone(),
        name: Str::new(name),
    }
}

/// The service that a derived Service, or a slice of it, was derived of.
fn origin(metadata: &Metadata) -> Option<ObjectKey> {
    let name = metadata.labels.get(names::SERVICE_NAME)?;
    Some(key(&metadata.namespace, name))
}

/// The service that a slice is of.
fn service_of(slice: &SliceObject) -> Option<ObjectKey> {
    let metadata = &slice.metadata;
    Some(key(&metadata.namespace, metadata.labels.get(SERVICE_NAME_LABEL)?))
}

fn manager(slice: &SliceObject) -> &str {
    slice.metadata.labels.get(names::MANAGED_BY).unwrap_or_default()
}

impl State {
    pub(crate) fn new(cluster: String, shares_namespaces: bool) -> Self {
        Self {
            cluster,
            shares_namespaces,
            exports: Store::default(),
            imports: Store::default(),
            services: Store::default(),
            slices: Store::default(),
            namespaces: Store::default(),
            slices_of: BTreeMap::new(),
            copied: BTreeMap::new(),
        }
    }

    /// Whether all first lists are complete.
    pub(crate) fn is_complete(&self) -> bool {
        self.exports.is_complete()
            && self.imports.is_complete()
            && self.services.is_complete()
            && self.slices.is_complete()
            && self.namespaces.is_complete()
    }

    /// What is wrong with watches and objects, for health.
    pub(crate) fn faults(&self) -> Vec<String> {
        let stores = self.exports.faults().chain(self.imports.faults());
        let stores = stores.chain(self.services.faults()).chain(self.slices.faults());
        stores.chain(self.namespaces.faults()).collect()
    }

    /// A Service has changed: that of an export, or one that was derived.
    pub(crate) fn service_changed(dirty: &mut Dirty, key: &ObjectKey, service: Option<&Arc<ServiceObject>>) {
        dirty.insert(key.clone());
        dirty.extend(service.and_then(|service| origin(&service.metadata)));
    }

    /// Takes over a slice, in its old and new state.
    pub(crate) fn slice_changed(
        slices_of: &mut BTreeMap<ObjectKey, BTreeSet<Str>>,
        dirty: &mut Dirty,
        old: Option<&Arc<SliceObject>>,
        new: Option<&Arc<SliceObject>>,
    ) {
        for (slice, is_new) in [(old, false), (new, true)] {
            let Some(slice) = slice else { continue };
            let Some(service) = service_of(slice) else {
                continue;
            };
            let name = slice.metadata.name.clone();
            let names = slices_of.entry(service.clone()).or_default();
            if is_new {
                names.insert(name);
            } else {
                names.remove(&name);
            }
            if names.is_empty() {
                slices_of.remove(&service);
            }
            dirty.insert(service);
            dirty.extend(origin(&slice.metadata));
        }
    }

    /// Takes over an event of a slice.
    pub(crate) fn slice_event(
        &mut self,
        event: skep_k8s_client::WatcherEvent<SliceObject>,
        dirty: &mut Dirty,
    ) {
        let Self {
            slices, slices_of, ..
        } = self;
        slices.handle(event, |_, old, new| {
            Self::slice_changed(slices_of, dirty, old, new)
        });
    }

    /// All services of a namespace that may have to be looked at.
    pub(crate) fn in_namespace(&self, namespace: &str, dirty: &mut Dirty) {
        let exports = self.exports.keys().chain(self.imports.keys());
        dirty.extend(exports.filter(|key| key.namespace == namespace).cloned());
    }

    pub(crate) fn written(&mut self, written: Written) {
        let Self {
            slices, slices_of, ..
        } = self;
        let mut ignored = Dirty::new();
        let mut slice = |old: Option<&Arc<SliceObject>>, new: Option<&Arc<SliceObject>>| {
            Self::slice_changed(slices_of, &mut ignored, old, new);
        };
        match written {
            Written::Export(export) => self.exports.apply(export, |_, _, _| ()),
            Written::Import(import) => self.imports.apply(import, |_, _, _| ()),
            Written::Service(service) => self.services.apply(service, |_, _, _| ()),
            Written::Slice(object) => slices.apply(object, |_, old, new| slice(old, new)),
            Written::Copied(copied) => {
                let key = key(&copied.copy.namespace, &copied.copy.target);
                self.copied.insert(key, copied);
            }
            Written::Gone(target, key) => match target {
                Target::Export => self.exports.delete(&key, |_, _, _| ()),
                Target::Import => self.imports.delete(&key, |_, _, _| ()),
                Target::Service => self.services.delete(&key, |_, _, _| ()),
                Target::Slice => {
                    self.copied.remove(&key);
                    slices.delete(&key, |_, old, new| slice(old, new));
                }
            },
        }
    }

    /// Plans the writes of a service.
    pub(crate) fn plan(
        &self,
        key: &ObjectKey,
        remotes: &[Arc<ServiceExport>],
        unknown: &BTreeSet<String>,
        now: Timestamp,
    ) -> Plan {
        let derived = ObjectKey {
            namespace: key.namespace.clone(),
            name: names::derived(key),
        };
        let invalid = self.exports.invalid(key).or(self.imports.invalid(key));
        let invalid = invalid.or(self.services.invalid(key));
        if let Some(error) = invalid.or(self.services.invalid(&derived)) {
            // What is written must follow from all that there is.
            return Plan {
                fault: Some(error.to_string()),
                ..Plan::default()
            };
        }
        let slices = |service: &ObjectKey| -> Vec<&SliceObject> {
            let names = self.slices_of.get(service).into_iter().flatten();
            let slice = |name: &Str| {
                let key = ObjectKey {
                    namespace: key.namespace.clone(),
                    name: name.clone(),
                };
                self.slices.get(&key).map(|slice| &**slice)
            };
            names.filter_map(slice).collect()
        };
        let mut sources = slices(key);
        sources.retain(|slice| !matches!(manager(slice), names::COPIES_MANAGER | names::MIRROR_MANAGER));
        let mut copies = slices(&derived);
        copies.retain(|slice| manager(slice) == names::COPIES_MANAGER);
        plan(&View {
            key,
            cluster: &self.cluster,
            namespace: namespace::state(&self.namespaces, &key.namespace, self.shares_namespaces),
            export: self.exports.get(key).map(|export| &**export),
            service: self.services.get(key).map(|service| &**service),
            import: self.imports.get(key).map(|import| &**import),
            derived: self.services.get(&derived).map(|service| &**service),
            remotes,
            unknown,
            slices: sources,
            copies,
            copied: &self.copied,
            now,
        })
    }
}
