// SPDX-License-Identifier: Apache-2.0

//! Strategic merge patch: a merge patch whose lists merge by key, with directives.

use serde_json::{Map, Value};

use crate::schema::{Merge, Shape};

const DIRECTIVE: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";
const DELETE_PRIMITIVES: &str = "$deleteFromPrimitiveList/";
const ORDER: &str = "$setElementOrder/";

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
    if let Some(keep) = patch.get(RETAIN_KEYS).and_then(Value::as_array) {
        target.retain(|key, _| keep.iter().any(|k| k.as_str() == Some(key)));
    }
    for (key, value) in patch {
        if let Some(field) = key.strip_prefix(DELETE_PRIMITIVES) {
            if let (Some(list), Some(gone)) = (
                target.get_mut(field).and_then(Value::as_array_mut),
                value.as_array(),
            ) {
                list.retain(|item| !gone.contains(item));
            }
            continue;
        }
        if key == DIRECTIVE || key == RETAIN_KEYS || key.starts_with(ORDER) {
            continue;
        }
        let below = shape.child(key);
        match (target.get_mut(key), value) {
            (_, Value::Null) => {
                target.shift_remove(key);
            }
            (Some(Value::Object(old)), Value::Object(new)) => {
                if directive(new)? == Some("delete") {
                    target.shift_remove(key);
                } else {
                    merge_map(&below, old, new)?;
                }
            }
            (Some(Value::Array(old)), Value::Array(new)) => merge_list(&below, old, new)?,
            (None, Value::Object(new)) => {
                if directive(new)? != Some("delete") {
                    let mut fresh = Map::new();
                    merge_map(&below, &mut fresh, new)?;
                    target.insert(key.clone(), Value::Object(fresh));
                }
            }
            (None, Value::Array(new)) => {
                let mut fresh = Vec::new();
                merge_list(&below, &mut fresh, new)?;
                target.insert(key.clone(), Value::Array(fresh));
            }
            (_, other) => {
                target.insert(key.clone(), clean(other));
            }
        }
    }
    for (key, order) in patch {
        if let (Some(field), Some(order)) = (key.strip_prefix(ORDER), order.as_array()) {
            let below = shape.child(field);
            if let Some(list) = target.get_mut(field).and_then(Value::as_array_mut) {
                reorder(&below, list, order);
            }
        }
    }
    Ok(())
}

fn merge_list(shape: &Shape, old: &mut Vec<Value>, new: &[Value]) -> Result<(), String> {
    let (item_shape, rule) = shape.items();
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
            let replaces = new.iter().any(|item| {
                item.as_object().is_some_and(|m| m.len() == 1)
                    && item.get(DIRECTIVE).and_then(Value::as_str) == Some("replace")
            });
            if replaces {
                *old = new
                    .iter()
                    .filter(|i| i.get(DIRECTIVE).is_none())
                    .map(clean)
                    .collect();
                return Ok(());
            }
            for item in new {
                let Some(patch) = item.as_object() else {
                    return Err(format!("expected objects in a list that merges by {key}"));
                };
                let Some(wanted) = patch.get(key) else {
                    return Err(format!("map: {item} does not contain declared merge key: {key}"));
                };
                let at = old.iter().position(|o| o.get(key) == Some(wanted));
                if directive(patch)? == Some("delete") {
                    old.retain(|o| o.get(key) != Some(wanted));
                } else if let Some(Value::Object(found)) = at.and_then(|at| old.get_mut(at)) {
                    merge_map(&item_shape, found, patch)?;
                } else {
                    let mut fresh = Map::new();
                    merge_map(&item_shape, &mut fresh, patch)?;
                    old.push(Value::Object(fresh));
                }
            }
        }
    }
    Ok(())
}

/// Puts the items that `order` names into that order, on the places that they have together.
fn reorder(shape: &Shape, list: &mut [Value], order: &[Value]) {
    let (_, rule) = shape.items();
    let rank = |item: &Value| match &rule {
        Merge::Keys(keys) => {
            let key = keys.first()?;
            order
                .iter()
                .position(|o| o.get(key).is_some() && o.get(key) == item.get(key))
        }
        _ => order.iter().position(|o| o == item),
    };
    let places: Vec<usize> = (0..list.len()).filter(|i| rank(&list[*i]).is_some()).collect();
    let mut items: Vec<Value> = places.iter().map(|i| list[*i].clone()).collect();
    items.sort_by_key(|item| rank(item));
    for (place, item) in places.into_iter().zip(items) {
        list[place] = item;
    }
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
        .filter(|(key, value)| {
            !value.is_null()
                && *key != DIRECTIVE
                && *key != RETAIN_KEYS
                && !key.starts_with(ORDER)
                && !key.starts_with(DELETE_PRIMITIVES)
        })
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
    fn merges_lists_by_key() {
        check(
            "core.v1.Service",
            json!({ "spec": { "ports": [{ "port": 80, "name": "a" }, { "port": 81, "name": "b" }] } }),
            json!({ "spec": { "ports": [{ "port": 81, "name": "c" }, { "port": 82 }] } }),
            json!({ "spec": { "ports": [{ "port": 80, "name": "a" }, { "port": 81, "name": "c" }, { "port": 82 }] } }),
        );
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
    fn merges_sets_and_deletes_from_them() {
        check(
            "core.v1.Pod",
            json!({ "metadata": { "finalizers": ["a", "b"] } }),
            json!({ "metadata": { "$deleteFromPrimitiveList/finalizers": ["a"], "finalizers": ["c"] } }),
            json!({ "metadata": { "finalizers": ["b", "c"] } }),
        );
    }

    #[test]
    fn replaces_atomic_lists() {
        check(
            "core.v1.Service",
            json!({ "spec": { "externalIPs": ["1.1.1.1"] } }),
            json!({ "spec": { "externalIPs": ["2.2.2.2"] } }),
            json!({ "spec": { "externalIPs": ["2.2.2.2"] } }),
        );
    }

    #[test]
    fn refuses_items_without_key() {
        let error = merge(
            &Shape::Named("core.v1.Service"),
            &json!({ "spec": { "ports": [{ "port": 80 }] } }),
            &json!({ "spec": { "ports": [{ "name": "x" }] } }),
        )
        .unwrap_err();

        assert!(
            error.contains("does not contain declared merge key: port"),
            "{error}"
        );
    }
}
