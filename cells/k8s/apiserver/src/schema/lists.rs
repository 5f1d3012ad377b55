// SPDX-License-Identifier: Apache-2.0

//! Lists that are sets or maps: nothing is in them twice.

use std::collections::HashSet;

use serde_json::{Map, Value};
use skep_k8s_memory::{Fault, object};

use super::join;

/// Names of the key fields of the items of a list, if it is a map.
pub(super) fn keys(schema: &Value) -> Option<Vec<&str>> {
    (object::text(schema, &["x-kubernetes-list-type"]) == "map").then(|| {
        object::items(schema, &["x-kubernetes-list-map-keys"])
            .iter()
            .filter_map(Value::as_str)
            .collect()
    })
}

/// Finds items that are in a set or a map twice.
pub(super) fn check(schema: &Value, value: &Value, faults: &mut Vec<Fault>) {
    check_at(schema, value, "", faults);
}

fn check_at(schema: &Value, value: &Value, path: &str, faults: &mut Vec<Fault>) {
    match value {
        Value::Object(map) => {
            let properties = schema.get("properties").and_then(Value::as_object);
            let additional = schema.get("additionalProperties").filter(|v| v.is_object());
            for (key, child) in map {
                if let Some(below) = properties.and_then(|p| p.get(key)).or(additional) {
                    check_at(below, child, &join(path, key), faults);
                }
            }
        }
        Value::Array(items) => {
            twice(schema, items, path, faults);
            if let Some(below) = schema.get("items") {
                for (index, item) in items.iter().enumerate() {
                    check_at(below, item, &format!("{path}[{index}]"), faults);
                }
            }
        }
        _ => {}
    }
}

fn twice(schema: &Value, items: &[Value], path: &str, faults: &mut Vec<Fault>) {
    let keys = keys(schema);
    if keys.is_none() && object::text(schema, &["x-kubernetes-list-type"]) != "set" {
        return;
    }
    let mut seen = HashSet::new();
    for (index, item) in items.iter().enumerate() {
        let id = match &keys {
            None => item.clone(),
            Some(keys) => keys
                .iter()
                .filter_map(|key| Some(((*key).to_owned(), item.get(*key)?.clone())))
                .collect::<Map<_, _>>()
                .into(),
        };
        if !seen.insert(id.to_string()) {
            faults.push(Fault::duplicate(format!("{path}[{index}]"), &id));
        }
    }
}
