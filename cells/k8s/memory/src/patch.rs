// SPDX-License-Identifier: Apache-2.0

//! Changes of objects: merge patch, JSON patch, strategic merge patch and server-side apply.

pub(crate) mod apply;
mod fields;
mod merge;
mod owners;
mod strategic;
mod typed;

use json_patch::PatchOperation;
use serde_json::Value;

use crate::error::ApiError;
use crate::schema::Shape;

/// A change to an object.
#[derive(Clone, Debug)]
pub enum Patch {
    /// JSON patch (RFC 6902): a list of operations.
    Json(Value),
    /// JSON merge patch (RFC 7386).
    Merge(Value),
    /// Strategic merge patch: lists merge by the keys that Kubernetes defines.
    Strategic(Value),
    /// Server-side apply: the fields that the manager wants.
    Apply(Value),
}

/// Most operations that a JSON patch may have.
const MAX_OPERATIONS: usize = 10_000;

impl Patch {
    /// Changes `object`. Not for [`Patch::Apply`], which needs the owners of fields.
    pub fn change(&self, shape: &Shape, object: &Value) -> Result<Value, ApiError> {
        match self {
            Patch::Json(operations) => {
                if operations.as_array().is_some_and(|o| o.len() > MAX_OPERATIONS) {
                    return Err(ApiError::too_large(MAX_OPERATIONS));
                }
                let patch: json_patch::Patch = serde_json::from_value(operations.clone())
                    .map_err(|error| ApiError::bad_request(format!("error decoding patch: {error}")))?;
                let mut changed = object.clone();
                apply_operations(&mut changed, patch)?;
                Ok(changed)
            }
            Patch::Merge(patch) => {
                if !patch.is_object() {
                    return Err(ApiError::bad_request(
                        "error decoding patch: a merge patch must be an object",
                    ));
                }
                let mut changed = object.clone();
                json_patch::merge(&mut changed, patch);
                Ok(changed)
            }
            Patch::Strategic(patch) => {
                if !patch.is_object() {
                    return Err(ApiError::bad_request(
                        "error decoding patch: a strategic patch must be an object",
                    ));
                }
                strategic::merge(shape, object, patch).map_err(ApiError::bad_request)
            }
            Patch::Apply(_) => Err(ApiError::internal("apply needs field owners")),
        }
    }
}

/// Applies the operations one after another. As in API servers, a member of an object that is replaced need not be
/// there: clients set a `/status` that way.
fn apply_operations(object: &mut Value, patch: json_patch::Patch) -> Result<(), ApiError> {
    for operation in patch.0 {
        let operation = match operation {
            PatchOperation::Replace(replace) if is_missing_member(object, &replace.path) => {
                PatchOperation::Add(json_patch::AddOperation {
                    path: replace.path,
                    value: replace.value,
                })
            }
            other => other,
        };
        json_patch::patch(object, &[operation]).map_err(|error| ApiError::patch_failed(error.to_string()))?;
    }
    Ok(())
}

/// Whether a path leads to a member that its object does not have.
fn is_missing_member(object: &Value, path: &json_patch::jsonptr::Pointer) -> bool {
    let parent = path.parent().and_then(|parent| parent.resolve(object).ok());
    parent.is_some_and(Value::is_object) && path.resolve(object).is_err()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn patched(object: &Value, operations: Value) -> Result<Value, ApiError> {
        Patch::Json(operations).change(&Shape::Any, object)
    }

    #[test]
    fn replaces_members_that_are_not_there() {
        let object = json!({ "spec": { "list": [1] } });

        let status = json!([{ "op": "replace", "path": "/status", "value": { "ok": true } }]);
        assert_eq!(
            patched(&object, status).unwrap(),
            json!({ "spec": { "list": [1] }, "status": { "ok": true } })
        );
        for path in ["/status/ok", "/spec/list/1"] {
            let nowhere = json!([{ "op": "replace", "path": path, "value": 1 }]);
            assert_eq!(patched(&object, nowhere).unwrap_err().code, 422, "{path}");
        }
    }

    #[test]
    fn a_failed_test_leaves_nothing_changed() {
        let object = json!({ "metadata": { "uid": "a" } });
        let operations = json!([
            { "op": "replace", "path": "/status", "value": 1 },
            { "op": "test", "path": "/metadata/uid", "value": "b" },
        ]);

        assert_eq!(patched(&object, operations).unwrap_err().code, 422);
    }
}
