// SPDX-License-Identifier: Apache-2.0

//! Errors of requests, and what the runtime does about them.

use std::time::Duration;

use skep_k8s_client::ApiError;
use skep_k8s_types::DecodeError;
use tokio::time::timeout;

/// Time after which a request counts as failed.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// When a key is reconciled again after a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retry {
    /// Not before the next change that affects it; the failure stays in health.
    OnChange,
    /// Soon: another program wrote the object meanwhile.
    Conflict,
    /// After a pause that doubles with each failure.
    Backoff,
    /// As [`Backoff`](Self::Backoff), and no other key before: the API server does not answer.
    Unanswered,
}

/// A failure to reconcile a key.
pub trait Failure: std::error::Error + Send + Sync + 'static {
    /// When the key is reconciled again.
    fn retry(&self) -> Retry;
}

#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// The answer of the API server.
    #[error(transparent)]
    Api(#[from] ApiError),
    /// No answer within [`REQUEST_TIMEOUT`].
    #[error("no answer from the API server")]
    Timeout,
}

impl From<DecodeError> for RequestError {
    fn from(error: DecodeError) -> Self {
        Self::Api(error.into())
    }
}

impl RequestError {
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::Api(error) if error.is_not_found())
    }
}

impl Failure for RequestError {
    fn retry(&self) -> Retry {
        match self {
            Self::Api(error) if error.is_conflict() => Retry::Conflict,
            Self::Timeout | Self::Api(ApiError::Unreachable { .. }) => Retry::Unanswered,
            Self::Api(_) => Retry::Backoff,
        }
    }
}

/// Waits for the answer to a request, for [`REQUEST_TIMEOUT`] at most.
///
/// # Errors
///
/// [`RequestError`].
pub async fn request<T>(answer: impl Future<Output = Result<T, ApiError>>) -> Result<T, RequestError> {
    let answer = timeout(REQUEST_TIMEOUT, answer).await;
    Ok(answer.map_err(|_| RequestError::Timeout)??)
}
