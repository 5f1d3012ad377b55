// SPDX-License-Identifier: Apache-2.0

//! Carries out a plan.

use std::sync::Arc;

use serde_json::Value;
use skep_k8s_client::{Client, Patch, Subresource};
use skep_k8s_controller::{RequestError, request};
use skep_k8s_types::slim::{Metadata, Str};
use skep_k8s_types::{Kind, ObjectKey, RawObject, Resource};

use super::slices::is_equal;
use super::view::{Action, Copied, SliceCopy, Target};
use crate::object::{ExportObject, ImportObject, ServiceObject, SliceObject};
use crate::write::{CREATE, SyncError, Writes, deletion, options, replaced};

const FIELD_MANAGER: &str = "cilium-operator-mcsapi";

/// An object as it is after a write.
#[derive(Debug)]
pub(crate) enum Written {
    Export(Arc<ExportObject>),
    Import(Arc<ImportObject>),
    Service(Arc<ServiceObject>),
    Slice(Arc<SliceObject>),
    Copied(Copied),
    Deleted(Target, Metadata),
}

impl Target {
    pub(crate) fn kind(self) -> Kind {
        match self {
            Self::Export => ExportObject::kind(),
            Self::Import => ImportObject::kind(),
            Self::Service => ServiceObject::kind(),
            Self::Slice => SliceObject::kind(),
        }
    }

    fn written(self, object: &RawObject) -> Result<Vec<Written>, RequestError> {
        let written = match self {
            Self::Export => object.decode().map(Written::Export),
            Self::Import => object.decode().map(Written::Import),
            Self::Service => object.decode().map(Written::Service),
            Self::Slice => object.decode().map(Written::Slice),
        };
        Ok(vec![written?])
    }
}

#[derive(Clone)]
pub(crate) struct Writer {
    pub(crate) client: Arc<dyn Client>,
    pub(crate) namespace: Str,
}

impl Writer {
    /// Carries out the actions of a service.
    pub(crate) async fn run(self, actions: Vec<Action>) -> Writes<Written> {
        Writes::run(actions, |action| self.act(action)).await
    }

    async fn act(&self, action: Action) -> Result<Vec<Written>, SyncError> {
        let (verb, target, name) = match &action {
            Action::Create(target, object) => {
                let name = object["metadata"]["name"].as_str().unwrap_or_default();
                (CREATE, *target, Str::new(name))
            }
            Action::Patch(target, name, Subresource::None, _) => ("update", *target, name.clone()),
            Action::Patch(target, name, Subresource::Status, _) => {
                ("update the status of", *target, name.clone())
            }
            Action::Delete(target, metadata) => ("delete", *target, metadata.name.clone()),
            Action::Copy(copy) => ("copy a slice to", Target::Slice, copy.target.clone()),
        };
        let done = match action {
            Action::Create(target, object) => self.create(target, object).await,
            Action::Patch(target, name, part, patch) => self.patch(target, &name, part, patch).await,
            Action::Delete(target, metadata) => self.delete(target, &metadata).await,
            Action::Copy(copy) => self.copy(*copy).await,
        };
        done.map_err(|cause| SyncError::Write {
            verb,
            kind: target.kind().kind,
            object: self.key(&name),
            cause,
        })
    }

    fn key(&self, name: &Str) -> ObjectKey {
        ObjectKey {
            namespace: self.namespace.clone(),
            name: name.clone(),
        }
    }

    async fn create(&self, target: Target, object: Value) -> Result<Vec<Written>, RequestError> {
        let (kind, options) = (target.kind(), options(FIELD_MANAGER));
        let created = self.client.create(&kind, &self.namespace, object, &options);
        target.written(&request(created).await?)
    }

    async fn patch(
        &self,
        target: Target,
        name: &Str,
        part: Subresource,
        patch: Value,
    ) -> Result<Vec<Written>, RequestError> {
        let (kind, patch, options) = (target.kind(), Patch::Merge(patch), options(FIELD_MANAGER));
        let patched = self
            .client
            .patch(&kind, &self.namespace, name, part, &patch, &options);
        target.written(&request(patched).await?)
    }

    async fn delete(&self, target: Target, metadata: &Metadata) -> Result<Vec<Written>, RequestError> {
        let (kind, name, options) = (target.kind(), &metadata.name, deletion(metadata));
        request(self.client.delete(&kind, &self.namespace, name, &options)).await?;
        Ok(vec![Written::Deleted(target, metadata.clone())])
    }

    async fn copy(&self, mut copy: SliceCopy) -> Result<Vec<Written>, RequestError> {
        let (kind, options) = (SliceObject::kind(), options(FIELD_MANAGER));
        let get = |name| request(self.client.get(&kind, &self.namespace, name));
        let source = get(&copy.source).await?;
        let desired = copy.object(&*source.to_value()?);
        let existing = match copy.exists {
            true => match get(&copy.target).await {
                Err(error) if error.is_not_found() => None,
                existing => Some(existing?),
            },
            false => None,
        };
        let written = match existing {
            None => {
                let created = self.client.create(&kind, &self.namespace, desired, &options);
                request(created).await?
            }
            Some(object) => {
                let existing = object.to_value()?;
                if existing["addressType"] != desired["addressType"] {
                    // The type of addresses cannot be changed.
                    let existing = object.decode::<SliceObject>()?;
                    return self.delete(Target::Slice, &existing.metadata).await;
                }
                if is_equal(&existing, &desired) {
                    object
                } else {
                    let (part, desired) = (Subresource::None, replaced(&existing, &desired));
                    let updated = self
                        .client
                        .update(&kind, &self.namespace, part, desired, &options);
                    request(updated).await?
                }
            }
        };
        let source = source.decode::<SliceObject>()?;
        let slice = written.decode::<SliceObject>()?;
        copy.version = source.metadata.resource_version.clone();
        let copied = Copied {
            copy,
            version: slice.metadata.resource_version.clone(),
        };
        // The watch may not have come as far.
        Ok(vec![
            Written::Slice(source),
            Written::Slice(slice),
            Written::Copied(copied),
        ])
    }
}
