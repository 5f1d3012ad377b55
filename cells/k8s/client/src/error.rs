// SPDX-License-Identifier: Apache-2.0

//! Errors of requests to an API server.

use serde::{Deserialize, Serialize};
use skep_k8s_types::DecodeError;

/// An API server's answer to a request that failed (`v1 Status`).
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Status {
    /// HTTP status code.
    pub code: u16,
    /// Reason for programs, such as `NotFound`.
    pub reason: String,
    /// Message for people, such as `services "web" not found`.
    pub message: String,
    /// More about the failure.
    pub details: StatusDetails,
}

/// Details of a [`Status`].
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct StatusDetails {
    /// Seconds to wait until the request is repeated; 0 if nothing is said.
    pub retry_after_seconds: u64,
}

impl Status {
    /// A status.
    pub fn new(code: u16, reason: &str, message: impl Into<String>) -> Self {
        Self {
            code,
            reason: reason.to_owned(),
            message: message.into(),
            details: StatusDetails::default(),
        }
    }
}

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// No cluster is configured: check [`Client::is_enabled`](crate::Client::is_enabled) first.
    #[error("no Kubernetes API server is configured")]
    Disabled,

    /// The server rejected the request. What to do depends on the code; see the `is_` functions.
    #[error("{}", .0.message)]
    Status(Status),

    /// The server could not be reached or the connection broke. Retry with backoff.
    #[error("cannot reach {server}")]
    Unreachable {
        /// Address of the server.
        server: String,
        /// Cause.
        #[source]
        cause: Box<dyn std::error::Error + Send + Sync>,
    },

    /// The server's answer is invalid. Retried with backoff; check whether a proxy answers in its place.
    #[error("invalid answer to {request}: {reason}")]
    Garbled {
        /// The request.
        request: String,
        /// Why it is invalid.
        reason: String,
    },

    /// The object does not match the schema of its kind.
    #[error(transparent)]
    Decode(#[from] DecodeError),
}

impl ApiError {
    /// The server's status, if it answered with one.
    pub fn status(&self) -> Option<&Status> {
        match self {
            Self::Status(status) => Some(status),
            _ => None,
        }
    }

    fn is(&self, code: u16, reason: &str) -> bool {
        // A status without a reason is from a proxy: its code decides.
        self.status().is_some_and(|status| {
            status.reason == reason || (status.reason.is_empty() && status.code == code)
        })
    }

    /// No such object, or no such kind.
    pub fn is_not_found(&self) -> bool {
        self.is(404, "NotFound")
    }

    /// The object to create exists.
    pub fn is_already_exists(&self) -> bool {
        self.is(409, "AlreadyExists")
    }

    /// The object was changed since it was read.
    pub fn is_conflict(&self) -> bool {
        self.is(409, "Conflict")
    }

    /// The resource version or continue token is too old: list again.
    pub fn is_expired(&self) -> bool {
        self.is(410, "Expired")
            || self.is(410, "Gone")
            || self.status().is_some_and(|status| status.code == 410)
    }

    /// The server limits the rate: retry later.
    pub fn is_too_many_requests(&self) -> bool {
        self.is(429, "TooManyRequests")
    }
}
