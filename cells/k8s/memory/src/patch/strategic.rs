// SPDX-License-Identifier: Apache-2.0

//! Strategic merge patch: a merge patch whose lists merge by key, with directives.

use serde_json::{Map, Value};

use crate::schema::{Merge, Shape};

const DIRECTIVE: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";
const DELETE_PRIMITIVES: &str = "$deleteFromPrimitiveList/";
const ORDER: &str = "$setElementOrder/";

/// Fields whose values have owners of their own when several managers apply them, and that a strategic patch replaces nonetheless.
const REPLACED: [(&str, &str); 8] = [
    (
        "admissionregistration.v1.ValidatingAdmissionPolicyBindingSpec",
        "validationActions",
    ),
    (
        "admissionregistration.v1.ValidatingAdmissionPolicyStatus",
        "conditions",
    ),
    ("apiextensions.v1.CustomResourceDefinitionStatus", "conditions"),
    ("batch.v1.UncountedTerminatedPods", "failed"),
    ("batch.v1.UncountedTerminatedPods", "succeeded"),
    ("certificates.v1.CertificateSigningRequestStatus", "conditions"),
    ("core.v1.ResourceRequirements", "claims"),
    ("storage.v1.CSIDriverSpec", "volumeLifecycleModes"),
];

/// Merges `patch` into `object`.
pub(super) fn merge(shape: &Shape, object: &Value, patch: &Value) -> Result<Value, String> {
    let mut result = object.clone();
    match (result.as_object_mut(), patch.as_object()) {
        (Some(target), Some(patch)) => {
            merge_map(shape, target, patch)?;
            Ok(result)
        }
        _ => Err("a strategic patch merges objects".to_owned()),
    }
}

fn directive(patch: &Map<String, Value>) -> Result<Option<&str>, String> {
    match patch.get(DIRECTIVE) {
        None => Ok(None),
        Some(Value::String(text)) if matches!(text.as_str(), "replace" | "delete" | "merge") => {
            Ok(Some(text))
        }
        Some(other) => Err(format!("unknown patch type: {other}")),
    }
}

/// Whether a key of a patch says how to merge, and is no field.
fn is_directive(key: &str) -> bool {
    key == DIRECTIVE || key == RETAIN_KEYS || key.starts_with(ORDER) || key.starts_with(DELETE_PRIMITIVES)
}

/// How two versions of the list `key` of an object merge, and the shape of its items.
fn items(shape: &Shape, key: &str) -> (Shape, Merge) {
    let (item, merge) = shape.child(key).items();
    let object = shape.object();
    let of = object.as_ref().map_or("", |object| object.name);
    if REPLACED.contains(&(of, key)) {
        (item, Merge::Atomic)
    } else {
        (item, merge)
    }
}

fn merge_map(
    shape: &Shape,
    target: &mut Map<String, Value>,
    patch: &Map<String, Value>,
) -> Result<(), String> {
    match directive(patch)? {
        Some("replace") => {
            *target = clean_map(patch);
            return Ok(());
        }
        Some("delete") => {
            target.clear();
            return Ok(());
        }
        _ => {}
    }
    if let Some(keep) = patch.get(RETAIN_KEYS) {
        retain(target, keep, patch)?;
    }
    for (key, gone) in patch {
        if let Some(field) = key.strip_prefix(DELETE_PRIMITIVES) {
            let gone = gone
                .as_array()
                .ok_or_else(|| format!("invalid patch format of primitive list: {key} is no list"))?;
            if let Some(list) = target.get_mut(field).and_then(Value::as_array_mut) {
                list.retain(|item| !gone.contains(item));
            }
        }
    }
    let before: Vec<(String, Value)> = patch
        .keys()
        .filter_map(|key| key.strip_prefix(ORDER))
        .filter_map(|field| Some((field.to_owned(), target.get(field)?.clone())))
        .collect();
    for (key, value) in patch.iter().filter(|(key, _)| !is_directive(key)) {
        merge_field(shape, target, key, value)?;
    }
    for (key, order) in patch {
        let Some(field) = key.strip_prefix(ORDER) else {
            continue;
        };
        let order = order
            .as_array()
            .ok_or_else(|| format!("invalid patch format of setElementOrder list: {key} is no list"))?;
        let (_, rule) = items(shape, field);
        if let Some(wanted) = patch.get(field).and_then(Value::as_array) {
            check_order(&rule, key, wanted, order)?;
        }
        if let Some(list) = target.get_mut(field).and_then(Value::as_array_mut) {
            let old = before.iter().find(|(name, _)| name == field);
            let old = old.and_then(|(_, old)| old.as_array());
            reorder(&rule, list, order, old.map_or(&[], Vec::as_slice));
        }
    }
    Ok(())
}

/// Removes all fields but those to keep, among which all that the patch sets must be.
fn retain(target: &mut Map<String, Value>, keep: &Value, patch: &Map<String, Value>) -> Result<(), String> {
    let invalid = || "invalid patch format of retainKeys".to_owned();
    let keep = keep.as_array().ok_or_else(invalid)?;
    let keeps = |key: &str| keep.iter().any(|kept| kept.as_str() == Some(key));
    let sets = patch
        .iter()
        .filter(|(key, value)| !value.is_null() && !is_directive(key));
    for (key, _) in sets {
        if !keeps(key) {
            return Err(invalid());
        }
    }
    target.retain(|key, _| keeps(key));
    Ok(())
}

fn merge_field(
    shape: &Shape,
    target: &mut Map<String, Value>,
    key: &str,
    value: &Value,
) -> Result<(), String> {
    match (target.get_mut(key), value) {
        (_, Value::Null) => {
            target.shift_remove(key);
        }
        (Some(Value::Object(old)), Value::Object(new)) => {
            if directive(new)? == Some("delete") {
                target.shift_remove(key);
            } else {
                merge_map(&shape.child(key), old, new)?;
            }
        }
        (Some(Value::Array(old)), Value::Array(new)) => merge_list(items(shape, key), old, new)?,
        (None, Value::Object(new)) => {
            if directive(new)? != Some("delete") {
                let mut fresh = Map::new();
                merge_map(&shape.child(key), &mut fresh, new)?;
                target.insert(key.to_owned(), Value::Object(fresh));
            }
        }
        (None, Value::Array(new)) => {
            let mut fresh = Vec::new();
            merge_list(items(shape, key), &mut fresh, new)?;
            target.insert(key.to_owned(), Value::Array(fresh));
        }
        (_, other) => {
            target.insert(key.to_owned(), clean(other));
        }
    }
    Ok(())
}

fn merge_list((item_shape, rule): (Shape, Merge), old: &mut Vec<Value>, new: &[Value]) -> Result<(), String> {
    match rule {
        Merge::Atomic => *old = new.iter().map(clean).collect(),
        Merge::Set => {
            for item in new {
                if !old.contains(item) {
                    old.push(clean(item));
                }
            }
        }
        Merge::Keys(keys) => {
            let Some(key) = keys.first() else { return Ok(()) };
            let says = |item: &Value, what: &str| item.get(DIRECTIVE).and_then(Value::as_str) == Some(what);
            if new.iter().any(|item| says(item, "replace")) {
                // What carries a directive is not itself an item.
                *old = new
                    .iter()
                    .filter(|item| item.get(DIRECTIVE).is_none())
                    .map(clean)
                    .collect();
                return Ok(());
            }
            for item in new {
                merge_item(&item_shape, key, old, item)?;
            }
        }
    }
    Ok(())
}

fn merge_item(shape: &Shape, key: &str, list: &mut Vec<Value>, item: &Value) -> Result<(), String> {
    let Some(patch) = item.as_object() else {
        return Err(format!("expected objects in a list that merges by {key}"));
    };
    let Some(wanted) = patch.get(key) else {
        return Err(format!("map: {item} does not contain declared merge key: {key}"));
    };
    let at = list.iter().position(|old| old.get(key) == Some(wanted));
    if directive(patch)? == Some("delete") {
        list.retain(|old| old.get(key) != Some(wanted));
    } else if let Some(Value::Object(found)) = at.and_then(|at| list.get_mut(at)) {
        merge_map(shape, found, patch)?;
    } else {
        let mut fresh = Map::new();
        merge_map(shape, &mut fresh, patch)?;
        list.push(Value::Object(fresh));
    }
    Ok(())
}

/// Where `list` has the item that is the same as `item` by the rule of the list.
fn place(rule: &Merge, list: &[Value], item: &Value) -> Option<usize> {
    match rule {
        Merge::Keys(keys) => {
            let key = item.get(keys.first()?)?;
            let name = keys.first()?;
            list.iter().position(|other| other.get(name) == Some(key))
        }
        Merge::Atomic | Merge::Set => list.iter().position(|other| other == item),
    }
}

/// Refuses a patch whose items are in another order than the one it asks for, or are not in it.
fn check_order(rule: &Merge, key: &str, items: &[Value], order: &[Value]) -> Result<(), String> {
    let mut next = 0;
    for item in items.iter().filter(|item| item.get(DIRECTIVE).is_none()) {
        match place(rule, order, item) {
            Some(at) if at >= next => next = at,
            _ => {
                let items = Value::Array(items.to_vec());
                let order = Value::Array(order.to_vec());
                return Err(format!(
                    "The order in patch list:\n{items}\n doesn't match {key} list:\n{order}\n"
                ));
            }
        }
    }
    Ok(())
}

/// Puts the items that `order` names into that order. The others, which only the server knows, stay in front of those
/// before which they were in the list until now.
fn reorder(rule: &Merge, list: &mut Vec<Value>, order: &[Value], before: &[Value]) {
    let (mut ordered, others): (Vec<_>, Vec<_>) = list
        .drain(..)
        .partition(|item| place(rule, order, item).is_some());
    ordered.sort_by_key(|item| place(rule, order, item));
    let (mut ordered, mut others) = (ordered.into_iter().peekable(), others.into_iter().peekable());
    while let (Some(other), Some(next)) = (others.peek(), ordered.peek()) {
        let was_in_front = match (place(rule, before, other), place(rule, before, next)) {
            (Some(other), Some(next)) => other < next,
            _ => false,
        };
        let from = if was_in_front { &mut others } else { &mut ordered };
        list.extend(from.next());
    }
    list.extend(ordered);
    list.extend(others);
}

fn clean(value: &Value) -> Value {
    match value {
        Value::Object(map) => Value::Object(clean_map(map)),
        Value::Array(items) => Value::Array(items.iter().map(clean).collect()),
        other => other.clone(),
    }
}

/// Without directives and nulls.
fn clean_map(map: &Map<String, Value>) -> Map<String, Value> {
    map.iter()
        .filter(|(key, value)| !value.is_null() && !is_directive(key))
        .map(|(key, value)| (key.clone(), clean(value)))
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(kind: &'static str, object: Value, patch: Value, expected: Value) {
        let shape = Shape::Named(kind);
        assert_eq!(merge(&shape, &object, &patch).unwrap(), expected);
    }

    #[test]
    fn deletes_and_reorders_by_directive() {
        check(
            "core.v1.Service",
            json!({ "spec": { "ports": [{ "port": 80 }, { "port": 81 }, { "port": 82 }] } }),
            json!({ "spec": {
                "$setElementOrder/ports": [{ "port": 82 }, { "port": 80 }],
                "ports": [{ "port": 81, "$patch": "delete" }],
            } }),
            json!({ "spec": { "ports": [{ "port": 82 }, { "port": 80 }] } }),
        );
    }

    #[test]
    fn replaces_and_retains() {
        check(
            "apps.v1.Deployment",
            json!({ "spec": { "strategy": { "type": "RollingUpdate", "rollingUpdate": { "maxSurge": 1 } } } }),
            json!({ "spec": { "strategy": { "$retainKeys": ["type"], "type": "Recreate" } } }),
            json!({ "spec": { "strategy": { "type": "Recreate" } } }),
        );
        check(
            "core.v1.ConfigMap",
            json!({ "data": { "a": "1", "b": "2" } }),
            json!({ "data": { "$patch": "replace", "c": "3" } }),
            json!({ "data": { "c": "3" } }),
        );
        check(
            "core.v1.ConfigMap",
            json!({ "data": { "a": "1", "b": "2" } }),
            json!({ "data": { "a": null } }),
            json!({ "data": { "b": "2" } }),
        );
    }

    #[test]
    fn items_that_only_the_server_knows_stay_in_front_of_their_neighbours() {
        let names = |names: &[&str]| {
            names
                .iter()
                .map(|name| json!({ "name": name }))
                .collect::<Vec<_>>()
        };
        let pod = |containers: Vec<Value>| json!({ "spec": { "containers": containers } });
        for (server, order, expected) in [
            // Another put a sidecar between the two that change places.
            (["a", "sidecar", "b"], ["b", "a"], ["sidecar", "b", "a"]),
            (["sidecar", "a", "b"], ["b", "a"], ["sidecar", "b", "a"]),
            (["a", "b", "sidecar"], ["b", "a"], ["b", "a", "sidecar"]),
        ] {
            check(
                "core.v1.Pod",
                pod(names(&server)),
                json!({ "spec": { "$setElementOrder/containers": names(&order) } }),
                pod(names(&expected)),
            );
        }
        // What is new goes where the order puts it.
        check(
            "core.v1.Pod",
            pod(names(&["a", "sidecar"])),
            json!({ "spec": {
                "$setElementOrder/containers": names(&["new", "a"]),
                "containers": names(&["new"]),
            } }),
            pod(names(&["new", "a", "sidecar"])),
        );
    }

    #[test]
    fn lists_of_containers_merge_by_their_keys() {
        check(
            "core.v1.Pod",
            json!({ "spec": { "containers": [{
                "name": "a", "image": "x:1",
                "env": [{ "name": "A", "value": "1" }, { "name": "B", "value": "2" }],
                "ports": [{ "containerPort": 80 }],
                "volumeMounts": [{ "mountPath": "/a", "name": "v" }],
                "args": ["one", "two"],
                "resources": { "claims": [{ "name": "gpu" }] },
            }] } }),
            json!({ "spec": { "containers": [{
                "name": "a",
                "env": [{ "name": "B", "$patch": "delete" }, { "name": "C", "value": "3" }],
                "ports": [{ "containerPort": 80, "name": "http" }],
                "volumeMounts": [{ "mountPath": "/b", "name": "v" }],
                "args": ["three"],
                "resources": { "claims": [{ "name": "nic" }] },
            }] } }),
            json!({ "spec": { "containers": [{
                "name": "a", "image": "x:1",
                "env": [{ "name": "A", "value": "1" }, { "name": "C", "value": "3" }],
                "ports": [{ "containerPort": 80, "name": "http" }],
                "volumeMounts": [{ "mountPath": "/a", "name": "v" }, { "mountPath": "/b", "name": "v" }],
                "args": ["three"],
                "resources": { "claims": [{ "name": "nic" }] },
            }] } }),
        );
    }

    #[test]
    fn refuses_patches_that_contradict_themselves() {
        let refused = |patch: Value| {
            let pod = json!({ "spec": { "containers": [{ "name": "a" }, { "name": "b" }] } });
            merge(&Shape::Named("core.v1.Pod"), &pod, &patch).unwrap_err()
        };

        let order = json!([{ "name": "a" }, { "name": "b" }]);
        for containers in [
            json!([{ "name": "b", "image": "x" }, { "name": "a", "image": "x" }]),
            json!([{ "name": "c", "image": "x" }]),
        ] {
            let error = refused(json!({ "spec": {
                "$setElementOrder/containers": order, "containers": containers,
            } }));
            assert!(error.starts_with("The order in patch list:"), "{error}");
            assert!(
                error.contains("doesn't match $setElementOrder/containers list:"),
                "{error}"
            );
        }
        assert_eq!(
            refused(json!({ "spec": { "$retainKeys": ["volumes"], "hostNetwork": true } })),
            "invalid patch format of retainKeys"
        );
        assert!(refused(json!({ "spec": { "$setElementOrder/containers": "a" } })).contains("is no list"));
        assert!(
            refused(json!({ "metadata": { "$deleteFromPrimitiveList/finalizers": "a" } }))
                .contains("is no list")
        );
    }
}
