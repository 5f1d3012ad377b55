// SPDX-License-Identifier: Apache-2.0

//! One write of a slice to the server.

use std::sync::Arc;

use skep_k8s_client::{Api, ApiError, Client, DeleteOptions, Preconditions};
use skep_k8s_crds::endpoint::CiliumEndpointSlice;
use skep_k8s_types::slim::Str;

use crate::slices::Write;

/// What the server has after a write.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// The slice, as written.
    Written(Arc<CiliumEndpointSlice>),
    /// Nothing: it was deleted.
    Deleted,
    /// Something else: it has changed meanwhile.
    Changed(Option<Arc<CiliumEndpointSlice>>, ApiError),
    /// Not known.
    Failed(ApiError),
}

/// Writes a slice. After a conflict it is read again.
pub(crate) async fn write(client: Arc<dyn Client>, name: &str, write: Write) -> Outcome {
    let api = Api::<CiliumEndpointSlice>::all(client);
    let result = match &write {
        Write::Create(object) => api.create(object).await.map(Some),
        Write::Update(object) => api.update(object).await.map(Some),
        Write::Delete { name, uid } => delete(&api, name, uid).await.map(|()| None),
    };
    match result {
        Ok(Some(object)) => Outcome::Written(object),
        Ok(None) => Outcome::Deleted,
        Err(error) if error.is_conflict() || error.is_already_exists() || error.is_not_found() => {
            match api.get(name).await {
                Ok(object) => Outcome::Changed(Some(object), error),
                Err(gone) if gone.is_not_found() => Outcome::Changed(None, error),
                Err(_) => Outcome::Failed(error),
            }
        }
        Err(error) => Outcome::Failed(error),
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
