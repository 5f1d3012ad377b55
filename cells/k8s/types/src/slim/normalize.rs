// SPDX-License-Identifier: Apache-2.0

//! An object → the same object with only the fields of its slim type.

use serde_json::{Value, json};

use super::{CiliumLocalRedirectPolicy, CiliumNode, EndpointSlice, Namespace, Node, Pod, Service};
use crate::decode::{DecodeError, RawObject};
use crate::kind::Resource;

fn through<T: Resource>(object: &Value) -> Result<Value, DecodeError> {
    let typed: T = RawObject::decode_value(object)?;
    let kind = T::kind();
    let mut value = json!({"apiVersion": kind.api_version(), "kind": kind.kind});
    let fields = serde_json::to_value(&typed)
        .map_err(|error| DecodeError::of(object, &kind, "", &error.to_string()))?;
    if let (Value::Object(target), Value::Object(fields)) = (&mut value, fields) {
        target.extend(fields);
    }
    keep_empty_lists(object, &mut value);
    Ok(value)
}

/// A list that is always printed is null if the object has none, but not if the object has an empty one.
fn keep_empty_lists(object: &Value, normalized: &mut Value) {
    match (object, normalized) {
        (Value::Object(object), Value::Object(normalized)) => {
            for (key, value) in normalized {
                if let Some(original) = object.get(key) {
                    keep_empty_lists(original, value);
                }
            }
        }
        (Value::Array(items), Value::Array(normalized)) => {
            for (item, value) in items.iter().zip(normalized) {
                keep_empty_lists(item, value);
            }
        }
        (Value::Array(items), value @ Value::Null) if items.is_empty() => *value = json!([]),
        _ => {}
    }
}

/// As [`through`], but keeps all metadata except `managedFields`.
fn with_metadata<T: Resource>(object: &Value) -> Result<Value, DecodeError> {
    let mut value = through::<T>(object)?;
    if let Some(Value::Object(metadata)) = object.get("metadata") {
        let mut metadata = metadata.clone();
        metadata.retain(|key, value| key != "managedFields" && !value.is_null());
        value["metadata"] = metadata.into();
    }
    Ok(value)
}

/// Drops what the slim type of an object does not model and fills in what the API always prints.
///
/// `None` if there is no slim type for the object's `apiVersion` and `kind`.
///
/// # Errors
///
/// [`DecodeError`] if a field has the wrong type.
pub fn normalize(object: &Value) -> Option<Result<Value, DecodeError>> {
    let text = |key: &str| object.get(key).and_then(Value::as_str).unwrap_or_default();
    Some(match (text("apiVersion"), text("kind")) {
        ("v1", "Service") => through::<Service>(object),
        ("v1", "Pod") => through::<Pod>(object),
        ("v1", "Node") => through::<Node>(object),
        ("v1", "Namespace") => through::<Namespace>(object),
        ("discovery.k8s.io/v1", "EndpointSlice") => through::<EndpointSlice>(object),
        ("cilium.io/v2", "CiliumNode") => with_metadata::<CiliumNode>(object),
        ("cilium.io/v2", "CiliumLocalRedirectPolicy") => with_metadata::<CiliumLocalRedirectPolicy>(object),
        _ => return None,
    })
}
