// SPDX-License-Identifier: Apache-2.0

//! One write of a slice to the server.

use std::sync::Arc;

use serde_json::json;
use skep_k8s_client::{Api, Client, DeleteOptions, Patch, Preconditions, Subresource};
use skep_k8s_controller::{RequestError, request};
use skep_k8s_crds::endpoint::CiliumEndpointSlice;
use skep_k8s_types::slim::Str;

use crate::slices::Write;

/// What the server has after a write.
#[derive(Debug)]
pub(crate) enum Outcome {
    Written(Arc<CiliumEndpointSlice>),
    Deleted,
    /// Something else: it has changed meanwhile.
    Changed(Option<Arc<CiliumEndpointSlice>>, RequestError),
    Failed(RequestError),
}

/// Writes a slice. After a conflict it is read again.
pub(crate) async fn write(client: Arc<dyn Client>, name: &str, write: Write) -> Outcome {
    let api = Api::<CiliumEndpointSlice>::all(client);
    let result = match &write {
        Write::Create(object) => request(api.create(object)).await.map(Some),
        // A patch, as annotations and finalizers of others stay.
        Write::Update(object) => {
            let patch = json!({
                "metadata": { "resourceVersion": object.metadata.resource_version },
                "namespace": object.namespace,
                "endpoints": object.endpoints,
            });
            let patch = Patch::Merge(patch);
            let patched = request(api.patch(name, Subresource::None, &patch)).await;
            patched.map(Some)
        }
        Write::Delete { name, uid } => delete(&api, name, uid).await.map(|()| None),
    };
    match result {
        Ok(Some(object)) => Outcome::Written(object),
        Ok(None) => Outcome::Deleted,
        Err(error) if has_changed(&error) => match request(api.get(name)).await {
            Ok(object) => Outcome::Changed(Some(object), error),
            Err(gone) if gone.is_not_found() => Outcome::Changed(None, error),
            Err(_) => Outcome::Failed(error),
        },
        Err(error) => Outcome::Failed(error),
    }
}

fn has_changed(error: &RequestError) -> bool {
    matches!(error, RequestError::Api(error)
        if error.is_conflict() || error.is_already_exists() || error.is_not_found())
}

async fn delete(api: &Api<CiliumEndpointSlice>, name: &str, uid: &Str) -> Result<(), RequestError> {
    let options = DeleteOptions {
        preconditions: Preconditions {
            uid: uid.clone(),
            ..Preconditions::default()
        },
        ..DeleteOptions::default()
    };
    match request(api.delete(name, &options)).await {
        Err(error) if error.is_not_found() => Ok(()),
        result => result,
    }
}
