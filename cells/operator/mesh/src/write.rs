// SPDX-License-Identifier: Apache-2.0

//! Results of writes.

use std::time::Duration;

use futures::{StreamExt, stream};
use serde_json::Value;
use skep_k8s_client::{DeleteOptions, Preconditions, WriteOptions};
use skep_k8s_controller::{Failure, RequestError, Retry};
use skep_k8s_types::ObjectKey;
use skep_k8s_types::slim::{Metadata, Str};

/// How often clusters that are waited for are compared with those that are configured.
pub(crate) const LOOK: Duration = Duration::from_secs(10);

/// Why a service is not as desired.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SyncError {
    /// An object was not written. Check the role of the operator's service account.
    #[error("cannot {verb} {kind} `{object}`")]
    Write {
        verb: &'static str,
        kind: Str,
        /// Namespace and name of the object.
        object: ObjectKey,
        #[source]
        cause: RequestError,
    },
    /// An object of another writer is in the way, or cannot be decoded.
    #[error("{0}")]
    Blocked(String),
}

impl Failure for SyncError {
    fn retry(&self) -> Retry {
        match self {
            Self::Blocked(_) => Retry::Backoff,
            Self::Write { verb, cause, .. } => match cause {
                // Another writer was first.
                RequestError::Api(error) if error.is_already_exists() => Retry::Conflict,
                RequestError::Api(error) if error.is_not_found() && *verb != CREATE => Retry::Conflict,
                cause => cause.retry(),
            },
        }
    }
}

pub(crate) const CREATE: &str = "create";

/// Result of the writes for a service.
#[derive(Debug)]
pub(crate) struct Writes<W> {
    pub(crate) written: Vec<W>,
    /// The first error.
    pub(crate) result: Result<(), SyncError>,
}

impl<W> Writes<W> {
    /// Carries out all actions: a write of one object does not wait for those of others.
    pub(crate) async fn run<A, F>(actions: Vec<A>, act: impl FnMut(A) -> F) -> Self
    where
        F: Future<Output = Result<Vec<W>, SyncError>>,
    {
        let results: Vec<_> = stream::iter(actions).then(act).collect().await;
        let (mut written, mut result) = (Vec::new(), Ok(()));
        for outcome in results {
            match outcome {
                Ok(objects) => written.extend(objects),
                Err(error) if result.is_ok() => result = Err(error),
                Err(error) => {
                    tracing::debug!(error = hive::error_chain(&error), "Write failed");
                }
            }
        }
        Self { written, result }
    }

    /// After which time a service without errors is reconciled again: at once after writes.
    pub(crate) fn again(&self, is_incomplete: bool) -> Option<Duration> {
        match self.written.is_empty() {
            true => is_incomplete.then_some(LOOK),
            false => Some(Duration::ZERO),
        }
    }
}

pub(crate) fn options(field_manager: &str) -> WriteOptions {
    WriteOptions {
        field_manager: field_manager.to_owned(),
        ..WriteOptions::default()
    }
}

/// Options to delete an object as it was read.
pub(crate) fn deletion(metadata: &Metadata) -> DeleteOptions {
    DeleteOptions {
        preconditions: Preconditions {
            uid: metadata.uid.clone(),
            resource_version: metadata.resource_version.clone(),
        },
        propagation: Str::const_new("Background"),
        ..DeleteOptions::default()
    }
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
