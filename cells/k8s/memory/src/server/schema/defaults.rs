// SPDX-License-Identifier: Apache-2.0

//! Defaults of schemas.

use serde_json::Value;

use super::says;

/// Fills in the defaults of a schema. A default applies only if the object around it is there; nulls that the schema
/// does not allow are as good as absent.
pub(crate) fn fill(schema: &Value, value: &mut Value) {
    match value {
        Value::Object(map) => {
            let properties = schema.get("properties").and_then(Value::as_object);
            for (key, below) in properties.into_iter().flatten() {
                let nullable = says(below, "nullable");
                if let Some(default) = below.get("default") {
                    let missing = match map.get(key) {
                        None => true,
                        Some(Value::Null) => !nullable,
                        Some(_) => false,
                    };
                    if missing {
                        map.insert(key.clone(), default.clone());
                    }
                } else if !nullable && map.get(key).is_some_and(Value::is_null) {
                    map.shift_remove(key);
                }
                if let Some(child) = map.get_mut(key) {
                    fill(below, child);
                }
            }
            if let Some(below @ Value::Object(_)) = schema.get("additionalProperties") {
                for (key, child) in map.iter_mut() {
                    if !properties.is_some_and(|known| known.contains_key(key)) {
                        fill(below, child);
                    }
                }
            }
        }
        Value::Array(items) => {
            if let Some(below) = schema.get("items") {
                items.iter_mut().for_each(|item| fill(below, item));
            }
        }
        _ => {}
    }
}

/// True if [`fill`] would add a default to the value: it was stored when the schema had others.
pub(crate) fn lacks_defaults(schema: &Value, value: &Value) -> bool {
    match value {
        Value::Object(map) => {
            let properties = schema.get("properties").and_then(Value::as_object);
            let lacks = |(key, below): (&String, &Value)| match map.get(key) {
                None => below.get("default").is_some(),
                Some(child) => lacks_defaults(below, child),
            };
            let known = properties.is_some_and(|properties| properties.iter().any(lacks));
            known
                || match schema.get("additionalProperties") {
                    Some(below @ Value::Object(_)) => map.values().any(|child| lacks_defaults(below, child)),
                    _ => false,
                }
        }
        Value::Array(items) => schema
            .get("items")
            .is_some_and(|below| items.iter().any(|item| lacks_defaults(below, item))),
        _ => false,
    }
}

/// True if a schema has a default anywhere.
pub(crate) fn has_defaults(schema: &Value) -> bool {
    let properties = schema.get("properties").and_then(Value::as_object);
    schema.get("default").is_some()
        || properties.is_some_and(|properties| properties.values().any(has_defaults))
        || ["items", "additionalProperties"]
            .into_iter()
            .any(|key| schema.get(key).is_some_and(has_defaults))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn schema() -> Value {
        json!({
            "type": "object",
            "properties": { "spec": { "type": "object", "properties": {
                "color": { "type": "string", "default": "red" },
                "timers": { "type": "object", "properties": { "hold": { "type": "integer", "default": 90 } } },
                "list": { "type": "array", "items": { "type": "object", "properties": { "on": { "type": "boolean", "default": true } } } },
            } } },
        })
    }

    #[test]
    fn fills_only_below_objects_that_are_there() {
        let mut object = json!({ "spec": { "color": null, "list": [{}, { "on": false }] } });

        assert!(lacks_defaults(&schema(), &object));
        fill(&schema(), &mut object);

        assert_eq!(
            object,
            json!({ "spec": { "color": "red", "list": [{ "on": true }, { "on": false }] } })
        );
        assert!(!lacks_defaults(&schema(), &object) && !lacks_defaults(&schema(), &json!({})));
        assert!(has_defaults(&schema()) && !has_defaults(&json!({ "type": "object" })));
    }
}
