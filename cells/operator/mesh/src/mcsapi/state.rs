// SPDX-License-Identifier: Apache-2.0

//! What is known of the cluster, and which services an object is about.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use skep_clustermesh_types::ServiceExport;
use skep_k8s_controller::Store;
use skep_k8s_types::ObjectKey;
use skep_k8s_types::slim::{Metadata, Namespace, Str};

use super::names;
use super::plan::plan;
use super::view::{Copied, Plan, Target, View};
use super::write::Written;
use crate::namespace;
use crate::object::{ExportObject, ImportObject, ServiceObject, SliceObject};
use crate::slices::SliceIndex;

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
    pub(crate) slices_of: SliceIndex,
    copied: BTreeMap<ObjectKey, Copied>,
}

fn key(namespace: &Str, name: impl AsRef<str>) -> ObjectKey {
    ObjectKey {
        namespace: namespace.clone(),
        name: Str::new(name),
    }
}

/// The service that a derived Service, or a slice of it, was derived of.
pub(crate) fn origin(metadata: &Metadata) -> Option<ObjectKey> {
    let name = metadata.labels.get(names::SERVICE_NAME)?;
    Some(key(&metadata.namespace, name))
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
            slices_of: SliceIndex::default(),
            copied: BTreeMap::new(),
        }
    }

    /// Services of a namespace that have an export or an import.
    pub(crate) fn in_namespace(&self, namespace: &str) -> impl Iterator<Item = &ObjectKey> {
        let keys = self.exports.keys().chain(self.imports.keys());
        keys.filter(move |key| key.namespace == namespace)
    }

    /// Takes in the answer to a write.
    pub(crate) fn written(&mut self, written: Written) {
        match written {
            Written::Export(export) => _ = self.exports.written(export),
            Written::Import(import) => _ = self.imports.written(import),
            Written::Service(service) => _ = self.services.written(service),
            Written::Slice(slice) => {
                let change = self.slices.written(slice);
                change.map(|change| self.slices_of.apply(&change));
            }
            Written::Copied(copied) => {
                let key = key(&copied.copy.namespace, &copied.copy.target);
                self.copied.insert(key, copied);
            }
            Written::Deleted(target, metadata) => match target {
                Target::Export => _ = self.exports.removed(&metadata),
                Target::Import => _ = self.imports.removed(&metadata),
                Target::Service => _ = self.services.removed(&metadata),
                Target::Slice => {
                    self.copied.remove(&key(&metadata.namespace, &metadata.name));
                    let change = self.slices.removed(&metadata);
                    change.map(|change| self.slices_of.apply(&change));
                }
            },
        }
    }

    /// Plans the writes of a service.
    pub(crate) fn plan(
        &self,
        key: &ObjectKey,
        remotes: &[Arc<ServiceExport>],
        is_unknown: &dyn Fn(&str) -> bool,
        now: Timestamp,
    ) -> Plan {
        let derived = ObjectKey {
            namespace: key.namespace.clone(),
            name: names::derived(key),
        };
        let of_services = self.services.watch().invalid();
        let invalid = [
            self.exports.watch().invalid().get(key),
            self.imports.watch().invalid().get(key),
            of_services.get(key),
            of_services.get(&derived),
        ];
        if let Some(error) = invalid.into_iter().flatten().next() {
            // What is written must follow from all that there is.
            return Plan {
                fault: Some(error.to_string()),
                ..Plan::default()
            };
        }
        let mut sources = self.slices_of.of(key, &self.slices);
        sources.retain(|slice| !matches!(manager(slice), names::COPIES_MANAGER | names::MIRROR_MANAGER));
        let mut copies = self.slices_of.of(&derived, &self.slices);
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
            is_unknown,
            slices: sources,
            copies,
            copied: &self.copied,
            now,
        })
    }
}
