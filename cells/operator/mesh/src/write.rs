// SPDX-License-Identifier: Apache-2.0

//! Errors of writes.

use serde_json::Value;
use skep_k8s_client::ApiError;
use skep_k8s_types::ObjectKey;
use skep_k8s_types::slim::Str;

/// Why an object was not written. Retried with backoff; check the role of the operator's service account.
#[derive(Debug, thiserror::Error)]
#[error("cannot {verb} {kind} `{object}`")]
pub(crate) struct WriteError {
    pub(crate) verb: &'static str,
    pub(crate) kind: Str,
    /// Namespace and name of the object.
    pub(crate) object: ObjectKey,
    #[source]
    pub(crate) cause: ApiError,
}

/// A slice with what is desired of it. Annotations, finalizers and fields of others stay.
pub(crate) fn replaced(slice: &Value, desired: &Value) -> Value {
    let mut slice = slice.clone();
    for field in ["addressType", "endpoints", "ports"] {
        slice[field] = desired[field].clone();
    }
    for field in ["labels", "ownerReferences"] {
        slice["metadata"][field] = desired["metadata"][field].clone();
    }
    slice
}

/// What is not as it should be, for health.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Faults(String);

impl Faults {
    /// The first faults as one error; `None` if there is none.
    pub(crate) fn of(mut faults: Vec<String>) -> Option<Self> {
        const MOST: usize = 10;
        let others = faults.len().saturating_sub(MOST);
        if faults.is_empty() {
            return None;
        }
        faults.truncate(MOST);
        if others > 0 {
            faults.push(format!("and {others} more"));
        }
        Some(Self(faults.join("; ")))
    }
}
