// SPDX-License-Identifier: Apache-2.0

//! Create, update and patch.

mod apply;
mod create;
mod receive;
mod update;

use std::sync::Arc;

use serde_json::Value;

use super::options::WriteOptions;
use super::service::Plan;
use super::{ApiServer, crd, present};
use crate::error::ApiError;
use crate::gvr::Gvr;
use crate::kinds::Kind;
use crate::object;
use crate::patch::Patch;
use crate::patch::apply::Manager;
use crate::schema::Shape;
use crate::tracker::Transaction;

/// The part of an object that a write is about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Subresource {
    /// The object without its status.
    #[default]
    None,
    /// The status only.
    Status,
    /// The finalizers in the spec of a namespace.
    Finalize,
}

impl Subresource {
    fn name(self) -> &'static str {
        match self {
            Subresource::None => "",
            Subresource::Status => "status",
            Subresource::Finalize => "finalize",
        }
    }
}

/// The result of a write.
#[derive(Clone, Debug)]
pub struct Written {
    /// The object as it is stored now.
    pub object: Arc<Value>,
    /// The object was not there before.
    pub created: bool,
    /// What the client should know.
    pub warnings: Vec<String>,
}

/// The result of a deletion.
#[derive(Clone, Debug)]
pub enum Deleted {
    /// The object is gone; its last state.
    Gone(Arc<Value>),
    /// The object goes when its finalizers are done or its grace period ends.
    Terminating(Arc<Value>),
}

impl Deleted {
    /// The object.
    pub fn object(&self) -> &Arc<Value> {
        match self {
            Deleted::Gone(object) | Deleted::Terminating(object) => object,
        }
    }
}

/// The parts of a write that stay the same on its way.
pub(super) struct Request<'a> {
    pub(super) kind: &'a Kind,
    pub(super) namespace: &'a str,
    pub(super) name: &'a str,
    pub(super) subresource: Subresource,
    pub(super) options: &'a WriteOptions,
}

impl Request<'_> {
    /// Who writes. `api_version` is that of the kind.
    fn manager<'a>(&'a self, api_version: &'a str) -> Manager<'a> {
        let name = self.options.field_manager.as_str();
        Manager {
            name: if name.is_empty() { "unknown" } else { name },
            api_version,
            subresource: self.subresource.name(),
            status_apart: self.kind.has_status,
        }
    }
}

impl ApiServer {
    /// Creates an object.
    pub fn create(
        &self,
        gvr: &Gvr,
        namespace: &str,
        mut object: Value,
        options: &WriteOptions,
    ) -> Result<Written, ApiError> {
        if gvr.group.is_empty() && gvr.resource == "bindings" {
            return self.bind(namespace, object::name(&object), &object, options);
        }
        let kind = self.kind(gvr)?;
        let mut warnings = Vec::new();
        self.receive(&kind, &mut object, options, &mut warnings)?;
        let request = Request {
            kind: &kind,
            namespace,
            name: "",
            subresource: Subresource::None,
            options,
        };
        let written = self.in_transaction(options, |tx, plan| {
            self.create_in(tx, plan, &request, object, None)
        })?;
        Ok(Written {
            object: present(&kind, written),
            created: true,
            warnings,
        })
    }

    /// Replaces an object, or a part of it. If it carries a resource version, that must be the current one.
    pub fn update(
        &self,
        gvr: &Gvr,
        namespace: &str,
        name: &str,
        subresource: Subresource,
        mut object: Value,
        options: &WriteOptions,
    ) -> Result<Written, ApiError> {
        let kind = self.kind(gvr)?;
        self.check_subresource(&kind, subresource)?;
        let mut warnings = Vec::new();
        self.receive(&kind, &mut object, options, &mut warnings)?;
        let request = Request {
            kind: &kind,
            namespace,
            name,
            subresource,
            options,
        };
        let (object, created) = self.in_transaction(options, |tx, plan| {
            let stored = tx.get(self.domain(&kind), &kind.stored(), namespace, name);
            match stored {
                Some(old) => Ok((self.update_in(tx, plan, &request, &old, object, None)?, false)),
                // Leases are made by whoever renews them first.
                None if kind.gvr.resource == "leases" && object::resource_version(&object).is_empty() => {
                    Ok((self.create_in(tx, plan, &request, object, None)?, true))
                }
                None => Err(ApiError::not_found(gvr, name)),
            }
        })?;
        Ok(Written {
            object: present(&kind, object),
            created,
            warnings,
        })
    }

    /// Changes an object, or a part of it. Server-side apply creates it if it is not there.
    pub fn patch(
        &self,
        gvr: &Gvr,
        namespace: &str,
        name: &str,
        subresource: Subresource,
        patch: &Patch,
        options: &WriteOptions,
    ) -> Result<Written, ApiError> {
        let kind = self.kind(gvr)?;
        self.check_subresource(&kind, subresource)?;
        let request = Request {
            kind: &kind,
            namespace,
            name,
            subresource,
            options,
        };
        let mut warnings = Vec::new();
        let (object, created) = self.in_transaction(options, |tx, plan| {
            let stored = tx.get(self.domain(&kind), &kind.stored(), namespace, name);
            if let Patch::Apply(config) = patch {
                return self.apply_in(tx, plan, &request, stored.as_deref(), config, &mut warnings);
            }
            let old = stored.ok_or_else(|| ApiError::not_found(gvr, name))?;
            if matches!(patch, Patch::Strategic(_)) && matches!(kind.shape, Shape::Any | Shape::Object(_)) {
                return Err(ApiError::unsupported_media_type(
                    "application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml",
                ));
            }
            let shown = present(&kind, old.clone());
            let mut new = patch.change(&kind.shape, &shown)?;
            if !new.is_object() {
                return Err(ApiError::bad_request("a patch must leave an object"));
            }
            self.receive(&kind, &mut new, options, &mut warnings)?;
            Ok((self.update_in(tx, plan, &request, &old, new, None)?, false))
        })?;
        Ok(Written {
            object: present(&kind, object),
            created,
            warnings,
        })
    }

    fn check_subresource(&self, kind: &Kind, subresource: Subresource) -> Result<(), ApiError> {
        match subresource {
            Subresource::Status if !kind.has_status => Err(ApiError::no_resource()),
            Subresource::Finalize if kind.gvr.resource != "namespaces" => Err(ApiError::no_resource()),
            _ => Ok(()),
        }
    }

    fn in_transaction<R>(
        &self,
        options: &WriteOptions,
        f: impl FnOnce(&mut Transaction<'_>, &mut Plan) -> Result<R, ApiError>,
    ) -> Result<R, ApiError> {
        self.tracker().attempt(!options.dry_run, |tx| {
            let mut plan = Plan::default();
            let result = f(tx, &mut plan)?;
            if !options.dry_run {
                self.0.allocator.lock().commit(plan);
            }
            Ok(result)
        })
    }

    /// What depends on the state of the cluster: addresses and ports of services, definitions.
    fn admit(
        &self,
        tx: &Transaction<'_>,
        plan: &mut Plan,
        kind: &Kind,
        old: Option<&Value>,
        new: &mut Value,
    ) -> Result<(), ApiError> {
        match (kind.gvr.group.as_str(), kind.gvr.resource.as_str()) {
            ("", "services") => self.0.allocator.lock().admit(plan, old, new),
            (crd::GROUP, crd::RESOURCE) => {
                crd::establish(&tx.list(self.domain(kind), &kind.stored(), None), old, new);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn store(
        &self,
        tx: &mut Transaction<'_>,
        kind: &Kind,
        mut object: Value,
        options: &WriteOptions,
    ) -> Result<Arc<Value>, ApiError> {
        if kind.gvr.version != kind.storage_version {
            let stored = crate::gvr::api_version(&kind.gvr.group, &kind.storage_version);
            if let Some(map) = object.as_object_mut() {
                map.insert("apiVersion".to_owned(), stored.into());
            }
        }
        let before = object::resource_version(&object).to_owned();
        let stored = tx.put(self.domain(kind), kind, object);
        if options.dry_run {
            // Nothing was written: an object that is there keeps its version, a new one has none.
            let mut shown = (*stored).clone();
            object::set_metadata(&mut shown, "resourceVersion", &before);
            return Ok(Arc::new(shown));
        }
        self.note_event(tx, kind, &stored);
        if self.is_real() && kind.gvr.group == crd::GROUP && kind.gvr.resource == crd::RESOURCE {
            self.define(&stored);
        }
        Ok(stored)
    }
}

/// Puts the object into the namespace of the request.
fn place(kind: &Kind, namespace: &str, object: &mut Value) -> Result<(), ApiError> {
    let sent = object::namespace(object);
    if !kind.namespaced {
        if !sent.is_empty() {
            object::set_metadata(object, "namespace", "");
        }
        return Ok(());
    }
    if sent.is_empty() {
        object::set_metadata(object, "namespace", namespace);
    } else if sent != namespace {
        return Err(ApiError::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    Ok(())
}

fn check_name(name: &str, object: &Value) -> Result<(), ApiError> {
    let sent = object::name(object);
    if sent.is_empty() {
        return Err(ApiError::bad_request("name must be provided"));
    }
    if sent != name {
        return Err(ApiError::bad_request(format!(
            "the name of the object ({sent}) does not match the name on the URL ({name})"
        )));
    }
    Ok(())
}
