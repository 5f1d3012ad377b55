// SPDX-License-Identifier: Apache-2.0

//! Carries out a plan.

use std::sync::Arc;

use serde_json::Value;
use skep_k8s_client::{ApiError, Client, DeleteOptions, Patch, Preconditions, Subresource, WriteOptions};
use skep_k8s_types::slim::{Metadata, Str};
use skep_k8s_types::{Kind, ObjectKey, RawObject, Resource};

use super::slices::is_equal;
use super::view::{Action, Copied, SliceCopy, Target};
use crate::object::{ExportObject, ImportObject, ServiceObject, SliceObject};
use crate::write::{WriteError, replaced};

const FIELD_MANAGER: &str = "cilium-operator-mcsapi";

/// An object as it is after a write, or after another writer was first.
#[derive(Debug)]
pub(crate) enum Written {
    Export(Arc<ExportObject>),
    Import(Arc<ImportObject>),
    Service(Arc<ServiceObject>),
    Slice(Arc<SliceObject>),
    Copied(Copied),
    Gone(Target, ObjectKey),
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

    fn written(self, object: &RawObject) -> Result<Written, ApiError> {
        Ok(match self {
            Self::Export => Written::Export(object.decode()?),
            Self::Import => Written::Import(object.decode()?),
            Self::Service => Written::Service(object.decode()?),
            Self::Slice => Written::Slice(object.decode()?),
        })
    }
}

pub(crate) struct Writer<'a> {
    pub(crate) client: &'a dyn Client,
    pub(crate) namespace: &'a Str,
}

impl Writer<'_> {
    /// Carries out the actions of a service; stops at the first that fails. Returns what was written.
    pub(crate) async fn run(&self, actions: Vec<Action>) -> (Vec<Written>, Result<(), WriteError>) {
        let mut written = Vec::new();
        let mut result = Ok(());
        for action in actions {
            // A write of one object does not wait for those of others.
            match self.act(action).await {
                Ok(objects) => written.extend(objects),
                Err(error) if result.is_ok() => result = Err(error),
                Err(error) => {
                    tracing::debug!(error = hive::error_chain(&error), "A further write failed");
                }
            }
        }
        (written, result)
    }

    async fn act(&self, action: Action) -> Result<Vec<Written>, WriteError> {
        let (verb, target, name) = match &action {
            Action::Create(target, object) => {
                let name = object["metadata"]["name"].as_str().unwrap_or_default();
                ("create", *target, Str::new(name))
            }
            Action::Patch(target, name, Subresource::None, _) => ("update", *target, name.clone()),
            Action::Patch(target, name, Subresource::Status, _) => {
                ("update the status of", *target, name.clone())
            }
            Action::Delete(target, metadata) => ("delete", *target, metadata.name.clone()),
            Action::Copy(copy) => ("copy a slice to", Target::Slice, copy.target.clone()),
        };
        let done = match action {
            Action::Create(target, object) => self.create(target, &name, object).await,
            Action::Patch(target, name, part, patch) => self.patch(target, &name, part, patch).await,
            Action::Delete(target, metadata) => self.delete(target, &metadata).await,
            Action::Copy(copy) => self.copy(*copy).await,
        };
        done.map_err(|cause| WriteError {
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

    fn options() -> WriteOptions {
        WriteOptions {
            field_manager: FIELD_MANAGER.to_owned(),
            ..WriteOptions::default()
        }
    }

    /// Reads an object that another writer has changed.
    async fn reread(&self, target: Target, name: &Str) -> Result<Vec<Written>, ApiError> {
        match self.client.get(&target.kind(), self.namespace, name).await {
            Ok(object) => Ok(vec![target.written(&object)?]),
            Err(error) if error.is_not_found() => Ok(vec![Written::Gone(target, self.key(name))]),
            Err(error) => Err(error),
        }
    }

    async fn create(&self, target: Target, name: &Str, object: Value) -> Result<Vec<Written>, ApiError> {
        let created = self
            .client
            .create(&target.kind(), self.namespace, object, &Self::options())
            .await;
        match created {
            Ok(object) => Ok(vec![target.written(&object)?]),
            Err(error) if error.is_already_exists() => self.reread(target, name).await,
            Err(error) => Err(error),
        }
    }

    async fn patch(
        &self,
        target: Target,
        name: &Str,
        part: Subresource,
        patch: Value,
    ) -> Result<Vec<Written>, ApiError> {
        let (patch, options) = (Patch::Merge(patch), Self::options());
        let patched = self
            .client
            .patch(&target.kind(), self.namespace, name, part, &patch, &options)
            .await;
        match patched {
            Ok(object) => Ok(vec![target.written(&object)?]),
            Err(error) if error.is_conflict() || error.is_not_found() => self.reread(target, name).await,
            Err(error) => Err(error),
        }
    }

    async fn delete(&self, target: Target, metadata: &Metadata) -> Result<Vec<Written>, ApiError> {
        let options = DeleteOptions {
            preconditions: Preconditions {
                uid: metadata.uid.clone(),
                resource_version: metadata.resource_version.clone(),
            },
            propagation: Str::const_new("Background"),
            ..DeleteOptions::default()
        };
        let name = &metadata.name;
        let deleted = self
            .client
            .delete(&target.kind(), self.namespace, name, &options)
            .await;
        match deleted {
            Ok(()) => Ok(vec![Written::Gone(target, self.key(name))]),
            Err(error) if error.is_conflict() || error.is_not_found() => self.reread(target, name).await,
            Err(error) => Err(error),
        }
    }

    async fn copy(&self, mut copy: SliceCopy) -> Result<Vec<Written>, ApiError> {
        let kind = SliceObject::kind();
        let get = async |name: &Str| match self.client.get(&kind, self.namespace, name).await {
            Ok(object) => Ok(Some(object)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        };
        let Some(source) = get(&copy.source).await? else {
            return Ok(vec![Written::Gone(Target::Slice, self.key(&copy.source))]);
        };
        let (source, source_object) = (source.to_value()?, source.decode::<SliceObject>()?);
        let desired = copy.object(&source);
        let existing = if copy.exists {
            get(&copy.target).await?
        } else {
            None
        };
        let options = Self::options();
        let written = match existing {
            None => {
                self.client
                    .create(&kind, self.namespace, desired, &options)
                    .await?
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
                    let desired = replaced(&existing, &desired);
                    let part = Subresource::None;
                    match self
                        .client
                        .update(&kind, self.namespace, part, desired, &options)
                        .await
                    {
                        Err(error) if error.is_conflict() || error.is_not_found() => {
                            return self.reread(Target::Slice, &copy.target).await;
                        }
                        written => written?,
                    }
                }
            }
        };
        let slice = written.decode::<SliceObject>()?;
        copy.version = source_object.metadata.resource_version.clone();
        let copied = Copied {
            copy,
            version: slice.metadata.resource_version.clone(),
        };
        // The watch may not have come as far.
        Ok(vec![
            Written::Slice(source_object),
            Written::Slice(slice),
            Written::Copied(copied),
        ])
    }
}
