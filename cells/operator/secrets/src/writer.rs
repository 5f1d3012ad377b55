// SPDX-License-Identifier: Apache-2.0

//! Makes one copy what it should be.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use skep_k8s_client::{ApiError, Client, DeleteOptions, Preconditions, Subresource, WriteOptions};
use skep_k8s_controller::{Failure, RequestError, Retry, request};
use skep_k8s_types::slim::Metadata;
use skep_k8s_types::{ObjectKey, Resource, resource};

use crate::copy::{Change, OWNER_NAME, OWNER_NAMESPACE, compare, is_copy};

/// `v1/Secret`, of which only whether it is a copy is kept: what it holds is read when it is copied.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Secret {
    metadata: Metadata,
    /// From the labels, when it is read.
    #[serde(skip)]
    pub(crate) is_copy: bool,
}

resource!(
    Secret,
    "",
    "v1",
    "Secret",
    "secrets",
    true,
    fn compact(&mut self) {
        let labels = std::mem::take(&mut self.metadata.labels);
        self.is_copy = labels.contains_key(OWNER_NAMESPACE) && labels.contains_key(OWNER_NAME);
        self.metadata.annotations = Default::default();
        self.metadata.owner_references = Default::default();
    }
);

#[derive(Debug, thiserror::Error)]
pub(crate) enum CopyError {
    #[error(transparent)]
    Request(#[from] RequestError),
    #[error("there is no Secret `{0}`")]
    NoOriginal(ObjectKey),
    #[error("namespace `{0}` has a Secret of that name that is no copy")]
    Foreign(String),
}

impl Failure for CopyError {
    fn retry(&self) -> Retry {
        match self {
            Self::Request(error) => error.retry(),
            // The watch reports when there is one.
            Self::NoOriginal(_) => Retry::OnChange,
            Self::Foreign(_) => Retry::Backoff,
        }
    }
}

pub(crate) struct Writer {
    client: Arc<dyn Client>,
    namespace: String,
}

impl Writer {
    pub(crate) fn new(client: Arc<dyn Client>, namespace: &str) -> Self {
        Self {
            client,
            namespace: namespace.to_owned(),
        }
    }

    /// Makes a copy equal to its original. Without `original` it is deleted, if that is allowed.
    pub(crate) async fn reconcile(
        &self,
        copy: &str,
        original: Option<&ObjectKey>,
        deletes: bool,
    ) -> Result<(), CopyError> {
        let (name, owner) = (copy, original);
        let namespace = self.namespace.as_str();
        let copy = self.get(namespace, name).await?;
        let Some(owner) = owner else {
            return match copy {
                Some(copy) if is_copy(&copy) && deletes => self.delete(name, &copy).await,
                _ => Ok(()),
            };
        };
        let Some(original) = self.get(&owner.namespace, &owner.name).await? else {
            if let Some(copy) = copy.filter(is_copy) {
                self.delete(name, &copy).await?;
            }
            return Err(CopyError::NoOriginal(owner.clone()));
        };
        let (kind, options) = (Secret::kind(), WriteOptions::default());
        match compare(owner, &original, namespace, name, copy.as_ref()) {
            Change::None => return Ok(()),
            Change::Foreign => return Err(CopyError::Foreign(namespace.to_owned())),
            Change::Create(wanted) => {
                request(self.client.create(&kind, namespace, wanted, &options)).await?;
            }
            Change::Update(wanted) => {
                let update = self
                    .client
                    .update(&kind, namespace, Subresource::None, wanted, &options);
                request(update).await?;
            }
            Change::Replace(wanted) => {
                if let Some(copy) = &copy {
                    self.delete(name, copy).await?;
                }
                request(self.client.create(&kind, namespace, wanted, &options)).await?;
            }
        }
        tracing::info!(original = %owner, copy = name, "Copied Secret");
        Ok(())
    }

    async fn get(&self, namespace: &str, name: &str) -> Result<Option<Value>, CopyError> {
        match request(self.client.get(&Secret::kind(), namespace, name)).await {
            Ok(object) => {
                let value = object
                    .to_value()
                    .map_err(ApiError::from)
                    .map_err(RequestError::from)?;
                Ok(Some((*value).clone()))
            }
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Deletes a copy as it was read.
    async fn delete(&self, name: &str, copy: &Value) -> Result<(), CopyError> {
        let text = |field: &str| copy["metadata"][field].as_str().unwrap_or_default().into();
        let options = DeleteOptions {
            preconditions: Preconditions {
                uid: text("uid"),
                resource_version: text("resourceVersion"),
            },
            ..DeleteOptions::default()
        };
        let kind = Secret::kind();
        match request(self.client.delete(&kind, &self.namespace, name, &options)).await {
            Ok(_) => {
                tracing::info!(copy = name, "Deleted copied Secret");
                Ok(())
            }
            Err(error) if error.is_not_found() => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}
