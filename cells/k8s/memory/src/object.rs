// SPDX-License-Identifier: Apache-2.0

//! Access to the parts of objects that all kinds share.

use serde_json::{Map, Value};

/// Text at `path` below `value`; empty if there is none.
pub fn text<'a>(value: &'a Value, path: &[&str]) -> &'a str {
    at(value, path).and_then(Value::as_str).unwrap_or_default()
}

/// Value at `path` below `value`.
pub fn at<'a>(value: &'a Value, path: &[&str]) -> Option<&'a Value> {
    path.iter().try_fold(value, |value, key| value.get(*key))
}

/// Items of the list at `path`; empty if there is none.
pub fn items<'a>(value: &'a Value, path: &[&str]) -> &'a [Value] {
    at(value, path)
        .and_then(Value::as_array)
        .map_or(&[], Vec::as_slice)
}

/// `metadata.name`; empty if there is none.
pub fn name(object: &Value) -> &str {
    text(object, &["metadata", "name"])
}

/// `metadata.namespace`; empty if there is none.
pub fn namespace(object: &Value) -> &str {
    text(object, &["metadata", "namespace"])
}

/// Place of an object in lists.
pub fn place(object: &Value) -> String {
    format!("{}/{}", namespace(object), name(object))
}

/// `metadata.uid`; empty if there is none.
pub fn uid(object: &Value) -> &str {
    text(object, &["metadata", "uid"])
}

/// `metadata.resourceVersion`; empty if there is none.
pub fn resource_version(object: &Value) -> &str {
    text(object, &["metadata", "resourceVersion"])
}

/// `metadata.generation`; 0 if there is none.
pub fn generation(object: &Value) -> i64 {
    at(object, &["metadata", "generation"])
        .and_then(Value::as_i64)
        .unwrap_or(0)
}

/// Value of a label.
pub fn label<'a>(object: &'a Value, key: &str) -> Option<&'a str> {
    at(object, &["metadata", "labels"])?.get(key)?.as_str()
}

/// Whether the object has a deletion timestamp.
pub fn is_terminating(object: &Value) -> bool {
    at(object, &["metadata", "deletionTimestamp"]).is_some_and(|v| !v.is_null())
}

/// Whether the object has finalizers.
pub fn has_finalizers(object: &Value) -> bool {
    !items(object, &["metadata", "finalizers"]).is_empty()
}

/// The map at `key`, created if there is none. What is no map there is replaced.
pub fn map_mut<'a>(value: &'a mut Value, key: &str) -> &'a mut Map<String, Value> {
    if !value.is_object() {
        *value = Value::Object(Map::new());
    }
    let entry = match value {
        Value::Object(map) => map.entry(key).or_insert_with(|| Value::Object(Map::new())),
        _ => unreachable!("made an object above"),
    };
    if !entry.is_object() {
        *entry = Value::Object(Map::new());
    }
    match entry {
        Value::Object(map) => map,
        _ => unreachable!("made an object above"),
    }
}

/// `metadata`, created if there is none.
pub fn metadata_mut(object: &mut Value) -> &mut Map<String, Value> {
    map_mut(object, "metadata")
}

/// Sets `metadata.<key>`, or removes it if `value` is empty.
pub fn set_metadata(object: &mut Value, key: &str, value: &str) {
    let metadata = metadata_mut(object);
    if value.is_empty() {
        metadata.shift_remove(key);
    } else {
        metadata.insert(key.to_owned(), value.into());
    }
}

/// Copies `metadata.<key>` from `from`, or removes it if it is absent there.
pub fn copy_metadata(object: &mut Value, from: &Value, key: &str) {
    let value = at(from, &["metadata", key]).cloned();
    let metadata = metadata_mut(object);
    match value {
        Some(value) => {
            metadata.insert(key.to_owned(), value);
        }
        None => {
            metadata.shift_remove(key);
        }
    }
}

/// Copies the field `key` from `from`, or removes it if it is absent there.
pub fn copy_field(object: &mut Value, from: &Value, key: &str) {
    let Some(map) = object.as_object_mut() else { return };
    match from.get(key) {
        Some(value) => {
            map.insert(key.to_owned(), value.clone());
        }
        None => {
            map.shift_remove(key);
        }
    }
}

/// The time now as Kubernetes writes times: whole seconds, UTC.
pub fn now() -> String {
    let now = jiff::Timestamp::now();
    let whole = jiff::Timestamp::from_second(now.as_second()).unwrap_or(now);
    whole.to_string()
}

/// Puts `apiVersion`, `kind` and `metadata` first, for readers.
pub fn with_type(object: Value, api_version: &str, kind: &str) -> Value {
    let mut map = Map::new();
    map.insert("kind".to_owned(), kind.into());
    map.insert("apiVersion".to_owned(), api_version.into());
    if let Value::Object(fields) = object {
        for (key, value) in fields {
            if key != "kind" && key != "apiVersion" {
                map.insert(key, value);
            }
        }
    }
    Value::Object(map)
}
