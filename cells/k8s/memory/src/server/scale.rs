// SPDX-License-Identifier: Apache-2.0

//! The scale sub-resource: how many replicas are wanted and there.

use serde_json::{Value, json};

use crate::error::ApiError;
use crate::kinds::{Kind, Scale};
use crate::object;
use crate::selector::LabelSelector;

fn at_path<'a>(object: &'a Value, path: &str) -> Option<&'a Value> {
    let parts: Vec<&str> = path.trim_start_matches('.').split('.').collect();
    object::at(object, &parts)
}

/// The scale of an object.
pub fn read_scale(scale: &Scale, object: &Value) -> Value {
    let number = |path: &str| at_path(object, path).and_then(Value::as_i64).unwrap_or(0);
    let mut metadata = json!({ "name": object::name(object) });
    for key in ["namespace", "uid", "resourceVersion", "creationTimestamp"] {
        if let Some(value) = object::at(object, &["metadata", key]) {
            metadata[key] = value.clone();
        }
    }
    let mut status = json!({ "replicas": number(&scale.status_replicas) });
    match at_path(object, &scale.selector) {
        Some(Value::String(text)) => status["selector"] = text.as_str().into(),
        Some(selector)
            if selector.get("matchLabels").is_some() || selector.get("matchExpressions").is_some() =>
        {
            status["selector"] = LabelSelector::of_object(selector).to_text().into();
        }
        Some(selector) => status["selector"] = LabelSelector::of_map(Some(selector)).to_text().into(),
        None => {}
    }
    json!({
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": metadata,
        "spec": { "replicas": number(&scale.spec_replicas) },
        "status": status,
    })
}

/// The merge patch that gives an object the replicas which `wanted`, a scale, asks for.
pub fn scale_patch(kind: &Kind, wanted: &Value) -> Result<Value, ApiError> {
    let Some(scale) = &kind.scale else {
        return Err(ApiError::no_resource());
    };
    let Some(replicas) = object::at(wanted, &["spec", "replicas"])
        .and_then(Value::as_i64)
        .filter(|n| *n >= 0)
    else {
        return Err(ApiError::bad_request(
            "spec.replicas must be a number that is not negative",
        ));
    };
    let mut patch = Value::from(replicas);
    for part in scale.spec_replicas.trim_start_matches('.').split('.').rev() {
        patch = json!({ part: patch });
    }
    let version = object::resource_version(wanted);
    if !version.is_empty() {
        patch["metadata"] = json!({ "resourceVersion": version });
    }
    Ok(patch)
}
