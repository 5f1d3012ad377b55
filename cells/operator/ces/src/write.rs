// SPDX-License-Identifier: Apache-2.0

//! One write of a slice to the server.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use skep_k8s_client::{Api, ApiError, Client, DeleteOptions, Patch, Preconditions, Subresource};
use skep_k8s_crds::endpoint::CiliumEndpointSlice;
use skep_k8s_types::slim::Str;

use crate::slices::Write;

/// How long a write may take: the slices behind it wait.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Why a slice could not be written. It is written again.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WriteError {
    /// The server rejected the request, or cannot be reached.
    #[error(transparent)]
    Api(#[from] ApiError),
    /// Whether the server has written it is not known.
    #[error("no answer within {TIMEOUT:?}")]
    TimedOut,
}

/// What the server has after a write.
#[derive(Debug)]
pub(crate) enum Outcome {
    Written(Arc<CiliumEndpointSlice>),
    Deleted,
    /// Something else: it has changed meanwhile.
    Changed(Option<Arc<CiliumEndpointSlice>>, WriteError),
    Failed(WriteError),
}

/// Writes a slice. After a conflict it is read again.
pub(crate) async fn write(client: Arc<dyn Client>, name: &str, write: Write) -> Outcome {
    let written = tokio::time::timeout(TIMEOUT, send(client, name, write)).await;
    written.unwrap_or(Outcome::Failed(WriteError::TimedOut))
}

async fn send(client: Arc<dyn Client>, name: &str, write: Write) -> Outcome {
    let api = Api::<CiliumEndpointSlice>::all(client);
    let result = match &write {
        Write::Create(object) => api.create(object).await.map(Some),
        // A patch, as annotations and finalizers of others stay.
        Write::Update(object) => {
            let patch = json!({
                "metadata": { "resourceVersion": object.metadata.resource_version },
                "namespace": object.namespace,
                "endpoints": object.endpoints,
            });
            let patched = api.patch(name, Subresource::None, &Patch::Merge(patch)).await;
            patched.map(Some)
        }
        Write::Delete { name, uid } => delete(&api, name, uid).await.map(|()| None),
    };
    match result {
        Ok(Some(object)) => Outcome::Written(object),
        Ok(None) => Outcome::Deleted,
        Err(error) if error.is_conflict() || error.is_already_exists() || error.is_not_found() => {
            match api.get(name).await {
                Ok(object) => Outcome::Changed(Some(object), error.into()),
                Err(gone) if gone.is_not_found() => Outcome::Changed(None, error.into()),
                Err(_) => Outcome::Failed(error.into()),
            }
        }
        Err(error) => Outcome::Failed(error.into()),
    }
}

async fn delete(api: &Api<CiliumEndpointSlice>, name: &str, uid: &Str) -> Result<(), ApiError> {
    let options = DeleteOptions {
        preconditions: Preconditions {
            uid: uid.clone(),
            ..Preconditions::default()
        },
        ..DeleteOptions::default()
    };
    match api.delete(name, &options).await {
        Err(error) if error.is_not_found() => Ok(()),
        result => result,
    }
}
