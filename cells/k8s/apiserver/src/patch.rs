// SPDX-License-Identifier: Apache-2.0

//! Changes of objects: merge patch, JSON patch, strategic merge patch and server-side apply.

pub(crate) mod apply;
mod fields;
mod merge;
mod owners;
mod strategic;
mod typed;

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
    pub(crate) fn change(&self, shape: &Shape, object: &Value) -> Result<Value, ApiError> {
        match self {
            Patch::Json(operations) => {
                if operations.as_array().is_some_and(|o| o.len() > MAX_OPERATIONS) {
                    return Err(ApiError::too_large(MAX_OPERATIONS));
                }
                let patch: json_patch::Patch = serde_json::from_value(operations.clone())
                    .map_err(|error| ApiError::bad_request(format!("error decoding patch: {error}")))?;
                let mut changed = object.clone();
                json_patch::patch(&mut changed, &patch)
                    .map_err(|error| ApiError::patch_failed(error.to_string()))?;
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
