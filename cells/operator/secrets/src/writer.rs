// SPDX-License-Identifier: Apache-2.0

//! Makes one copy what it should be.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use skep_k8s_client::{ApiError, Client, DeleteOptions, Preconditions, Subresource, WriteOptions};
use skep_k8s_types::slim::Metadata;
use skep_k8s_types::{ObjectKey, Resource, resource};
use tokio::time::timeout;

use crate::copy::{Change, OWNER_NAME, OWNER_NAMESPACE, compare, is_copy};

/// Time after which the requests for one copy count as failed.
const REQUESTS: Duration = Duration::from_secs(10);

/// `v1/Secret`, of which nothing is kept: what it holds is read when it is copied.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Secret {
    metadata: Metadata,
}

impl Secret {
    pub(crate) fn is_copy(&self) -> bool {
        let labels = &self.metadata.labels;
        labels.contains_key(OWNER_NAMESPACE) && labels.contains_key(OWNER_NAME)
    }
}

resource!(Secret, "", "v1", "Secret", "secrets", true);

/// Why there is no copy.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CopyError {
    #[error(transparent)]
    Api(#[from] ApiError),
    #[error("no answer from the API server")]
    Timeout,
    #[error("there is no Secret `{0}`")]
    NoOriginal(ObjectKey),
    #[error("namespace `{0}` has a Secret of that name that is no copy")]
    Foreign(String),
}

impl CopyError {
    /// Whether the API server answers.
    pub(crate) fn is_answered(&self) -> bool {
        !matches!(self, Self::Timeout | Self::Api(ApiError::Unreachable { .. }))
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
        let written = timeout(REQUESTS, self.write(copy, original, deletes)).await;
        written.unwrap_or(Err(CopyError::Timeout))
    }

    async fn write(&self, name: &str, owner: Option<&ObjectKey>, deletes: bool) -> Result<(), CopyError> {
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
            Change::Create(wanted) => _ = self.client.create(&kind, namespace, wanted, &options).await?,
            Change::Update(wanted) => {
                let update = self
                    .client
                    .update(&kind, namespace, Subresource::None, wanted, &options);
                update.await?;
            }
            Change::Replace(wanted) => {
                if let Some(copy) = &copy {
                    self.delete(name, copy).await?;
                }
                self.client.create(&kind, namespace, wanted, &options).await?;
            }
        }
        tracing::info!(original = %owner, copy = name, "Copied a Secret");
        Ok(())
    }

    async fn get(&self, namespace: &str, name: &str) -> Result<Option<Value>, CopyError> {
        match self.client.get(&Secret::kind(), namespace, name).await {
            Ok(object) => Ok(Some((*object.to_value().map_err(ApiError::from)?).clone())),
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
        match self
            .client
            .delete(&Secret::kind(), &self.namespace, name, &options)
            .await
        {
            Ok(_) => {
                tracing::info!(copy = name, "Deleted the copy of a Secret");
                Ok(())
            }
            Err(error) if error.is_not_found() => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}
