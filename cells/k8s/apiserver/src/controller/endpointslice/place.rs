// SPDX-License-Identifier: Apache-2.0

//! Which endpoint is in which slice: as few writes as possible, at most 100 endpoints in a slice.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use serde_json::{Map, Value, json};
use skep_k8s_memory::object;

use super::MANAGER;
use super::desired::Group;

/// Most endpoints in a slice.
const FULL: usize = 100;

/// A write.
#[derive(Debug)]
pub(super) enum Change {
    Create(Value),
    Update(Value),
    Delete(Arc<Value>),
}

/// Who an endpoint is, whatever its conditions are.
fn identity(endpoint: &Value) -> String {
    let target = |key: &str| object::text(endpoint, &["targetRef", key]);
    let address = object::items(endpoint, &["addresses"])
        .first()
        .and_then(Value::as_str)
        .unwrap_or_default();
    format!("{}/{}/{address}", target("name"), target("uid"))
}

/// Labels of a slice: those of the service, and ours.
fn labels(service: &Value) -> Map<String, Value> {
    let mut labels = object::at(service, &["metadata", "labels"])
        .and_then(Value::as_object)
        .cloned()
        .unwrap_or_default();
    for own in [
        "kubernetes.io/service-name",
        "endpointslice.kubernetes.io/managed-by",
        "service.kubernetes.io/headless",
    ] {
        labels.shift_remove(own);
    }
    labels.insert(
        "kubernetes.io/service-name".to_owned(),
        object::name(service).into(),
    );
    labels.insert(
        "endpointslice.kubernetes.io/managed-by".to_owned(),
        MANAGER.into(),
    );
    if object::text(service, &["spec", "clusterIP"]) == "None" {
        labels.insert("service.kubernetes.io/headless".to_owned(), "".into());
    }
    labels
}

fn fresh(service: &Value, group: &Group, endpoints: Vec<Value>) -> Value {
    json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "generateName": format!("{}-", object::name(service)),
            "namespace": object::namespace(service),
            "labels": labels(service),
            "ownerReferences": [{
                "apiVersion": "v1",
                "kind": "Service",
                "name": object::name(service),
                "uid": object::uid(service),
                "controller": true,
                "blockOwnerDeletion": true,
            }],
        },
        "addressType": group.family,
        "endpoints": endpoints,
        "ports": group.ports,
    })
}

/// The order of fields does not matter, and a missing list is an empty one.
fn equal(a: Option<&Value>, b: &Value) -> bool {
    match a {
        Some(a) => a == b,
        None => b.as_array().is_some_and(Vec::is_empty) || b.as_object().is_some_and(Map::is_empty),
    }
}

/// What turns the `existing` slices of `service` into `groups`.
pub(super) fn place(service: &Value, groups: Vec<Group>, existing: Vec<Arc<Value>>) -> Vec<Change> {
    let mut changes = Vec::new();
    let mut left = existing;
    let wanted_labels = Value::Object(labels(service));
    for group in &groups {
        let ports = Value::from(group.ports.clone());
        let uid = object::uid(service);
        let fits = |slice: &Arc<Value>| {
            let owners = object::items(slice, &["metadata", "ownerReferences"]);
            object::text(slice, &["addressType"]) == group.family
                && equal(slice.get("ports"), &ports)
                && owners.iter().any(|o| object::text(o, &["uid"]) == uid)
        };
        let (ours, rest): (Vec<_>, Vec<_>) = left.into_iter().partition(fits);
        left = rest;
        let mut wanted: BTreeMap<String, Value> =
            group.endpoints.iter().map(|e| (identity(e), e.clone())).collect();
        // Endpoints stay where they are.
        let mut kept: Vec<(Arc<Value>, Vec<Value>)> = ours
            .into_iter()
            .map(|slice| {
                let endpoints = object::items(&slice, &["endpoints"])
                    .iter()
                    .filter_map(|e| wanted.remove(&identity(e)))
                    .collect();
                (slice, endpoints)
            })
            .collect();
        let mut homeless: VecDeque<Value> = wanted.into_values().collect();
        // Slices that are written anyway are filled first, then others with room.
        kept.sort_by_key(|(slice, endpoints)| endpoints.len() == object::items(slice, &["endpoints"]).len());
        for (_, endpoints) in &mut kept {
            while endpoints.len() < FULL {
                match homeless.pop_front() {
                    Some(endpoint) => endpoints.push(endpoint),
                    None => break,
                }
            }
        }
        let mut alive = 0;
        let total = kept.len();
        for (index, (slice, endpoints)) in kept.into_iter().enumerate() {
            // The last one stays as a place holder if there are no endpoints at all.
            let last_hope = alive == 0 && index + 1 == total && homeless.is_empty();
            if endpoints.is_empty() && !(last_hope && group.endpoints.is_empty()) {
                changes.push(Change::Delete(slice));
                continue;
            }
            alive += 1;
            let endpoints = Value::from(endpoints);
            let same_labels = object::at(&slice, &["metadata", "labels"]) == Some(&wanted_labels);
            if equal(slice.get("endpoints"), &endpoints) && same_labels {
                continue;
            }
            let mut new = (*slice).clone();
            if let Some(map) = new.as_object_mut() {
                map.insert("endpoints".to_owned(), endpoints);
            }
            object::metadata_mut(&mut new).insert("labels".to_owned(), wanted_labels.clone());
            object::metadata_mut(&mut new).shift_remove("managedFields");
            changes.push(Change::Update(new));
        }
        while !homeless.is_empty() {
            let part: Vec<Value> = homeless.drain(..homeless.len().min(FULL)).collect();
            changes.push(Change::Create(fresh(service, group, part)));
            alive += 1;
        }
        if alive == 0 {
            changes.push(Change::Create(fresh(service, group, Vec::new())));
        }
    }
    changes.extend(left.into_iter().map(Change::Delete));
    // New endpoints come before old ones go.
    changes.sort_by_key(|change| match change {
        Change::Create(_) => 0,
        Change::Update(_) => 1,
        Change::Delete(_) => 2,
    });
    changes
}
