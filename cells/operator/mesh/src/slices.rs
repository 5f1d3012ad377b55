// SPDX-License-Identifier: Apache-2.0

//! EndpointSlices by the service that their label names.

use std::collections::{BTreeMap, BTreeSet};

use skep_clustermesh_types::SERVICE_NAME_LABEL;
use skep_k8s_controller::{Change, Store};
use skep_k8s_types::slim::Str;
use skep_k8s_types::{ObjectKey, Resource};

#[derive(Debug, Default)]
pub(crate) struct SliceIndex(BTreeMap<ObjectKey, BTreeSet<Str>>);

fn service_of(slice: &impl Resource) -> Option<ObjectKey> {
    let metadata = slice.metadata();
    Some(ObjectKey {
        namespace: metadata.namespace.clone(),
        name: Str::new(metadata.labels.get(SERVICE_NAME_LABEL)?),
    })
}

impl SliceIndex {
    /// Takes in a change of a slice; returns its services.
    pub(crate) fn apply<T: Resource>(&mut self, change: &Change<T>) -> Vec<ObjectKey> {
        let old = change.old.as_deref().and_then(service_of);
        let new = change.new.as_deref().and_then(service_of);
        if let Some(old) = &old
            && let Some(names) = self.0.get_mut(old)
        {
            names.remove(&change.key.name);
            if names.is_empty() {
                self.0.remove(old);
            }
        }
        if let Some(new) = &new {
            let names = self.0.entry(new.clone()).or_default();
            names.insert(change.key.name.clone());
        }
        old.into_iter().chain(new).collect()
    }

    pub(crate) fn contains(&self, service: &ObjectKey) -> bool {
        self.0.contains_key(service)
    }

    /// The slices of a service.
    pub(crate) fn of<'a, T: Resource>(&self, service: &ObjectKey, slices: &'a Store<T>) -> Vec<&'a T> {
        let names = self.0.get(service).into_iter().flatten();
        let slice = |name: &Str| {
            let key = ObjectKey {
                namespace: service.namespace.clone(),
                name: name.clone(),
            };
            slices.get(&key).map(|slice| &**slice)
        };
        names.filter_map(slice).collect()
    }
}
