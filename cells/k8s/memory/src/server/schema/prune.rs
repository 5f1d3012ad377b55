// SPDX-License-Identifier: Apache-2.0

//! Pruning of unknown fields.

use serde_json::Value;

use super::{join, says};

/// Drops the fields that a schema does not know; returns their paths.
pub fn prune(schema: &Value, value: &mut Value) -> Vec<String> {
    let mut unknown = Vec::new();
    prune_at(schema, value, "", &mut unknown);
    unknown
}

fn prune_at(schema: &Value, value: &mut Value, path: &str, unknown: &mut Vec<String>) {
    let keeps_unknown = says(schema, "x-kubernetes-preserve-unknown-fields");
    if says(schema, "x-kubernetes-embedded-resource") && keeps_unknown {
        return;
    }
    match value {
        Value::Object(map) => {
            let properties = schema.get("properties").and_then(Value::as_object);
            let additional = schema.get("additionalProperties");
            let keys: Vec<String> = map.keys().cloned().collect();
            for key in keys {
                let below = properties.and_then(|p| p.get(&key));
                match (below, additional) {
                    (Some(below), _) | (None, Some(below @ Value::Object(_))) => {
                        if let Some(child) = map.get_mut(&key) {
                            prune_at(below, child, &join(path, &key), unknown);
                        }
                    }
                    (None, Some(Value::Bool(true))) => {}
                    _ if keeps_unknown => {}
                    _ => {
                        unknown.push(join(path, &key));
                        map.shift_remove(&key);
                    }
                }
            }
        }
        Value::Array(items) => {
            if let Some(below) = schema.get("items") {
                for (index, item) in items.iter_mut().enumerate() {
                    prune_at(below, item, &format!("{path}[{index}]"), unknown);
                }
            }
        }
        _ => {}
    }
}
