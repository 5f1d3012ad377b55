// SPDX-License-Identifier: Apache-2.0

use std::sync::Arc;
use std::time::Duration;

use skep_identity::{IdentityRange, Labels};
use skep_identity_cache::LocalError;
use skep_k8s_controller::RequestError;

/// Why an identity was not allocated.
#[derive(Debug, thiserror::Error)]
pub enum AllocateError {
    /// Labels of the cluster, and neither Kubernetes nor a key-value store is configured.
    #[error("identity of `{0}`: no store of identities is configured")]
    NoStore(Arc<Labels>),

    /// See the log for what went wrong meanwhile. Try again.
    #[error("identity of `{labels}` was not allocated within {} s", timeout.as_secs())]
    Timeout { labels: Arc<Labels>, timeout: Duration },

    /// All ids of the cluster are allocated. Unused ones are free again when the operator has deleted them.
    #[error("identity of `{labels}`: no id is free in {range}")]
    Exhausted {
        labels: Arc<Labels>,
        range: IdentityRange,
    },

    /// The Kubernetes API server refused it; see the cause.
    #[error("identity of `{labels}` cannot be allocated")]
    Request {
        labels: Arc<Labels>,
        #[source]
        cause: RequestError,
    },

    #[error(transparent)]
    KvStore(#[from] skep_identity_kvstore::AllocateError),

    #[error(transparent)]
    Local(#[from] LocalError),
}
