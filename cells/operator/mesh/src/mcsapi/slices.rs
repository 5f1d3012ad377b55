// SPDX-License-Identifier: Apache-2.0

//! Copies of the slices of a local Service for the Service that is derived: its endpoints of the local cluster.
//!
//! Slices are watched without their endpoints. A copy reads both slices, and writes only what differs.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use skep_k8s_types::slim::{EndpointSlice, Metadata, Str};
use skep_k8s_types::{ObjectKey, Resource};

use super::desired::{Desired, is_headless};
use super::names;
use super::view::{Action, Plan, SliceCopy, Target, View};
use crate::object::{ServiceObject, SliceObject};

/// Plans the copies of all slices of the local Service, and deletes those of slices that are gone.
pub(crate) fn plan(view: &View<'_>, desired: &Desired<'_>, derived: &ServiceObject, plan: &mut Plan) {
    let mut sources: Vec<&SliceObject> = view.slices.clone();
    sources.retain(|slice| slice.metadata.deletion_timestamp.is_none());
    sources.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
    let mut targets = BTreeSet::new();
    for source in sources {
        let name = &source.metadata.name;
        let mut target = names::copy(view.key, name);
        if targets.contains(&target) {
            target = names::other_copy(view.key, name);
        }
        targets.insert(target.clone());
        let existing = view.copies.iter().find(|copy| copy.metadata.name == target);
        let copy = SliceCopy {
            namespace: view.key.namespace.clone(),
            source: name.clone(),
            version: source.metadata.resource_version.clone(),
            target: Str::new(&target),
            exists: existing.is_some(),
            labels: labels(view, desired, name),
            owner: (derived.metadata.name.clone(), derived.metadata.uid.clone()),
        };
        if !is_copied(view, &copy, existing.map(|copy| &copy.metadata)) {
            plan.actions.push(Action::Copy(Box::new(copy)));
        }
    }
    for copy in &view.copies {
        if !targets.contains(copy.metadata.name.as_str()) && copy.metadata.deletion_timestamp.is_none() {
            plan.actions
                .push(Action::Delete(Target::Slice, copy.metadata.clone()));
        }
    }
}

fn is_copied(view: &View<'_>, copy: &SliceCopy, existing: Option<&Metadata>) -> bool {
    let key = ObjectKey {
        namespace: copy.namespace.clone(),
        name: copy.target.clone(),
    };
    match (view.copied.get(&key), existing) {
        (Some(copied), Some(existing)) => {
            copied.version == existing.resource_version
                && copied.copy
                    == SliceCopy {
                        exists: copied.copy.exists,
                        ..copy.clone()
                    }
        }
        _ => false,
    }
}

fn labels(view: &View<'_>, desired: &Desired<'_>, source: &str) -> BTreeMap<String, String> {
    let mut labels = desired.service_labels();
    let own = [
        (names::MANAGED_BY, names::COPIES_MANAGER.to_owned()),
        (
            skep_clustermesh_types::SERVICE_NAME_LABEL,
            names::derived(view.key).to_string(),
        ),
        (names::SOURCE_CLUSTER, view.cluster.to_owned()),
        (names::LOCAL_SLICE, names::label_value(source)),
    ];
    labels.extend(own.map(|(key, value)| (key.to_owned(), value)));
    if is_headless(desired.export) {
        labels.insert(names::HEADLESS.to_owned(), String::new());
    }
    labels
}

impl SliceCopy {
    pub(crate) fn object(&self, source: &Value) -> Value {
        let kind = EndpointSlice::kind();
        let (name, uid) = &self.owner;
        json!({
            "apiVersion": kind.api_version(),
            "kind": kind.kind,
            "metadata": {
                "namespace": self.namespace,
                "name": self.target,
                "labels": self.labels,
                "ownerReferences": [{
                    "apiVersion": "v1",
                    "kind": "Service",
                    "name": name,
                    "uid": uid,
                    "controller": true,
                    "blockOwnerDeletion": true,
                }],
            },
            "addressType": source["addressType"],
            "endpoints": source["endpoints"],
            "ports": source["ports"],
        })
    }
}

/// Whether a copy has all that it should have.
pub(crate) fn is_equal(existing: &Value, desired: &Value) -> bool {
    let fields = ["addressType", "endpoints", "ports"];
    let list = |value: &Value| match value {
        Value::Array(items) if items.is_empty() => Value::Null,
        other => other.clone(),
    };
    fields
        .iter()
        .all(|field| list(&existing[field]) == list(&desired[field]))
        && existing["metadata"]["labels"] == desired["metadata"]["labels"]
        && existing["metadata"]["ownerReferences"] == desired["metadata"]["ownerReferences"]
}
