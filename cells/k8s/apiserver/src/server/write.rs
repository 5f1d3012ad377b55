// SPDX-License-Identifier: Apache-2.0

//! Create, update and patch.

use std::sync::Arc;

use serde_json::Value;

use super::options::{FieldValidation, WriteOptions};
use super::service::Plan;
use super::{ApiServer, crd, defaults, present, validate};
use crate::error::{ApiError, Fault};
use crate::gvr::Gvr;
use crate::kinds::Kind;
use crate::object;
use crate::patch::Patch;
use crate::patch::apply::{Manager, Ownership, apply};
use crate::schema::{Shape, decode, fill_required};
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

    /// Decodes what a client sent.
    fn receive(
        &self,
        kind: &Kind,
        object: &mut Value,
        options: &WriteOptions,
        warnings: &mut Vec<String>,
    ) -> Result<(), ApiError> {
        let refuse = |why: String| {
            ApiError::bad_request(format!(
                "{} in version {:?} cannot be handled as a {}: {why}",
                kind.kind,
                kind.gvr.version.as_str(),
                kind.kind
            ))
        };
        let (sent_kind, api_version) = (
            object::text(object, &["kind"]).to_owned(),
            object::text(object, &["apiVersion"]).to_owned(),
        );
        if !object.is_object() {
            return Err(refuse("the body is not an object".to_owned()));
        }
        if !api_version.is_empty() && api_version != kind.api_version() {
            return Err(ApiError::bad_request(format!(
                "the API version in the data ({api_version}) does not match the expected API version ({})",
                kind.api_version()
            )));
        }
        if !sent_kind.is_empty() && sent_kind != kind.kind {
            return Err(ApiError::bad_request(format!(
                "{sent_kind} in version {:?} cannot be handled as a {}: converting ({sent_kind}) to ({}): unknown conversion",
                kind.gvr.version.as_str(),
                kind.kind,
                kind.kind
            )));
        }
        let taken = object.take();
        *object = object::with_type(taken, &kind.api_version(), &kind.kind);
        if !self.is_real() {
            return Ok(());
        }
        let mut unknown = Vec::new();
        let meta = Shape::Named("meta.v1.ObjectMeta");
        let shape = if matches!(kind.shape, Shape::Named(_)) {
            &kind.shape
        } else {
            &Shape::Any
        };
        let decoded = decode(shape, object, &kind.kind).and_then(|decoded| {
            unknown = decoded.unknown;
            if let (None, Some(metadata)) = (shape.object(), object.get_mut("metadata")) {
                let decoded = decode(&meta, metadata, "ObjectMeta")?;
                unknown.extend(
                    decoded
                        .unknown
                        .into_iter()
                        .map(|field| format!("metadata.{field}")),
                );
            }
            Ok(())
        });
        decoded.map_err(|problem| refuse(problem.to_string()))?;
        if let Some(custom) = &kind.custom {
            unknown.extend(crd::prune(&custom.schema, object));
        }
        warnings.extend(crd::unheeded(kind, object));
        if unknown.is_empty() || options.validation == FieldValidation::Ignore {
            return Ok(());
        }
        let texts = unknown.iter().map(|field| format!("unknown field {field:?}"));
        if options.validation == FieldValidation::Strict {
            let list: Vec<String> = texts.collect();
            return Err(refuse(format!("strict decoding error: {}", list.join(", "))));
        }
        warnings.extend(texts);
        Ok(())
    }

    fn create_in(
        &self,
        tx: &mut Transaction<'_>,
        plan: &mut Plan,
        request: &Request<'_>,
        mut object: Value,
        applied: Option<Ownership>,
    ) -> Result<Arc<Value>, ApiError> {
        let Request {
            kind,
            namespace,
            options,
            ..
        } = *request;
        place(kind, namespace, &mut object)?;
        if !request.name.is_empty() {
            check_name(request.name, &object)?;
        }
        if object::name(&object).is_empty() {
            let prefix = object::text(&object, &["metadata", "generateName"]).to_owned();
            if prefix.is_empty() {
                let fault = Fault::required("metadata.name", "name or generateName is required");
                return Err(ApiError::invalid(&kind.gvr.group, &kind.kind, "", &[fault]));
            }
            let name = self.generate(tx, kind, namespace, &prefix);
            object::set_metadata(&mut object, "name", &name);
        }
        let name = object::name(&object).to_owned();
        let sent_version = object::resource_version(&object);
        if self.is_real() && !sent_version.is_empty() && sent_version != "0" {
            return Err(ApiError::bad_request(
                "resourceVersion should not be set on objects to be created",
            ));
        }
        if self.is_real() {
            self.check_namespace(tx, kind, namespace, &name)?;
            object::set_metadata(&mut object, "uid", &uuid::Uuid::new_v4().to_string());
            object::set_metadata(&mut object, "creationTimestamp", &object::now());
            for key in [
                "deletionTimestamp",
                "deletionGracePeriodSeconds",
                "generation",
                "selfLink",
            ] {
                object::metadata_mut(&mut object).shift_remove(key);
            }
            if kind.counts_generations {
                object::metadata_mut(&mut object).insert("generation".to_owned(), 1.into());
            }
            if kind.has_status
                && kind.gvr.resource != "nodes"
                && let Some(map) = object.as_object_mut()
            {
                map.shift_remove("status");
            }
            let api_version = kind.api_version();
            let (shape, manager) = (kind.shape.of_resource(), request.manager(&api_version));
            defaults::fill_in(kind, &mut object);
            let ownership = applied.unwrap_or_else(|| Ownership::update(&shape, None, &object, &manager));
            defaults::on_create(kind, &mut object);
            if kind.gvr.group.is_empty() && kind.gvr.resource == "pods" {
                self.admit_pod(tx, kind, namespace, &mut object)?;
            }
            self.admit(plan, kind, None, &mut object)?;
            validate::object(kind, None, &object)?;
            fill_required(&kind.shape, &mut object);
            ownership.finish(&shape, None, &mut object, &manager);
        } else {
            if object::uid(&object).is_empty() {
                object::set_metadata(&mut object, "uid", &uuid::Uuid::new_v4().to_string());
            }
            if let Some(applied) = applied {
                let api_version = kind.api_version();
                let manager = request.manager(&api_version);
                applied.finish(&kind.shape.of_resource(), None, &mut object, &manager);
            }
        }
        // After validation, as real servers do: what is wrong with an object is told first.
        if tx
            .get(self.domain(kind), &kind.stored(), namespace, &name)
            .is_some()
        {
            return Err(ApiError::already_exists(&kind.gvr, &name));
        }
        let stored = self.store(tx, kind, object, options)?;
        if self.is_real() && kind.gvr.group.is_empty() && kind.gvr.resource == "namespaces" {
            self.populate_namespace(tx, &name);
        }
        Ok(stored)
    }

    /// A free name that starts with `prefix`.
    fn generate(&self, tx: &Transaction<'_>, kind: &Kind, namespace: &str, prefix: &str) -> String {
        // As Kubernetes: five letters that make no words, and names of at most 63 characters.
        const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
        let stem: String = prefix.chars().take(58).collect();
        loop {
            let suffix: String = (0..5)
                .map(|_| LETTERS[rand::random_range(0..LETTERS.len())] as char)
                .collect();
            let name = format!("{stem}{suffix}");
            if tx
                .get(self.domain(kind), &kind.stored(), namespace, &name)
                .is_none()
            {
                return name;
            }
        }
    }

    fn check_namespace(
        &self,
        tx: &Transaction<'_>,
        kind: &Kind,
        namespace: &str,
        name: &str,
    ) -> Result<(), ApiError> {
        if !kind.namespaced {
            return Ok(());
        }
        let namespaces = Gvr::new("", "v1", "namespaces");
        match tx.get(crate::tracker::Domain::Core, &namespaces, "", namespace) {
            None => Err(ApiError::not_found(&namespaces, namespace)),
            Some(found) if object::is_terminating(&found) => {
                let detail = format!(
                    "unable to create new content in namespace {namespace} because it is being terminated"
                );
                let mut error = ApiError::forbidden(&kind.gvr, name, &detail);
                if let Some(details) = &mut error.details {
                    details["causes"] = serde_json::json!([{
                        "reason": "NamespaceTerminating",
                        "message": format!("namespace {namespace} is being terminated"),
                        "field": "metadata.namespace",
                    }]);
                }
                Err(error)
            }
            Some(_) => Ok(()),
        }
    }

    pub(super) fn update_in(
        &self,
        tx: &mut Transaction<'_>,
        plan: &mut Plan,
        request: &Request<'_>,
        old: &Arc<Value>,
        mut new: Value,
        applied: Option<Ownership>,
    ) -> Result<Arc<Value>, ApiError> {
        let Request {
            kind,
            namespace,
            name,
            subresource,
            ..
        } = *request;
        let api_version = kind.api_version();
        let (shape, manager) = (kind.shape.of_resource(), request.manager(&api_version));
        place(kind, namespace, &mut new)?;
        check_name(name, &new)?;
        self.check_identity(request, old, &mut new)?;
        let old_shown = present(kind, old.clone());
        if self.is_real() {
            defaults::fill_in(kind, &mut new);
            for key in [
                "creationTimestamp",
                "deletionTimestamp",
                "deletionGracePeriodSeconds",
                "generation",
                "selfLink",
            ] {
                object::copy_metadata(&mut new, &old_shown, key);
            }
            match subresource {
                Subresource::None if kind.has_status => object::copy_field(&mut new, &old_shown, "status"),
                Subresource::None => {}
                Subresource::Status => new = status_only(&old_shown, &new),
                Subresource::Finalize => {
                    let finalizers = object::at(&new, &["spec", "finalizers"]).cloned();
                    let mut changed = (*old_shown).clone();
                    object::map_mut(&mut changed, "spec")
                        .insert("finalizers".to_owned(), finalizers.unwrap_or_default());
                    new = changed;
                }
            }
            let ownership =
                applied.unwrap_or_else(|| Ownership::update(&shape, Some(&old_shown), &new, &manager));
            if subresource == Subresource::None {
                defaults::on_update(kind, &old_shown, &mut new);
                self.admit(plan, kind, Some(&old_shown), &mut new)?;
                if kind.counts_generations && wants_differ(kind, &old_shown, &new) {
                    let next = object::generation(old) + 1;
                    object::metadata_mut(&mut new).insert("generation".to_owned(), next.into());
                }
            }
            validate::object(kind, Some(&old_shown), &new)?;
            fill_required(&kind.shape, &mut new);
            ownership.finish(&shape, Some(&old_shown), &mut new, &manager);
        } else {
            if subresource == Subresource::Status {
                new = status_only(&old_shown, &new);
            }
            if let Some(applied) = applied {
                applied.finish(&shape, Some(&old_shown), &mut new, &manager);
            }
        }
        self.settle(tx, plan, request, old, &old_shown, new)
    }

    /// The version and the UID that a client sent, if it did, must be those of the stored object.
    fn check_identity(&self, request: &Request<'_>, old: &Value, new: &mut Value) -> Result<(), ApiError> {
        let Request { kind, name, .. } = *request;
        let sent_version = object::resource_version(new).to_owned();
        if !sent_version.is_empty() && sent_version != "0" && sent_version != object::resource_version(old) {
            let current = object::resource_version(old);
            return Err(if self.is_real() {
                ApiError::modified(&kind.gvr, name)
            } else {
                ApiError::other_version(&kind.gvr, name, current, &sent_version)
            });
        }
        if self.is_real() && (sent_version.is_empty() || sent_version == "0") && demands_version(kind) {
            let fault = Fault::invalid(
                "metadata.resourceVersion",
                &0.into(),
                "must be specified for an update",
            );
            return Err(ApiError::invalid(&kind.gvr.group, &kind.kind, name, &[fault]));
        }
        let sent_uid = object::uid(new);
        if !sent_uid.is_empty() && sent_uid != object::uid(old) {
            if self.is_real() {
                let detail = format!(
                    "Precondition failed: UID in precondition: {sent_uid}, UID in object meta: {}",
                    object::uid(old)
                );
                return Err(ApiError::conflict(&kind.gvr, name, &detail));
            }
        } else {
            object::copy_metadata(new, old, "uid");
        }
        Ok(())
    }

    /// Stores an update: nothing if nothing changed, a deletion if the last finalizer went.
    fn settle(
        &self,
        tx: &mut Transaction<'_>,
        plan: &mut Plan,
        request: &Request<'_>,
        old: &Arc<Value>,
        old_shown: &Arc<Value>,
        mut new: Value,
    ) -> Result<Arc<Value>, ApiError> {
        let Request {
            kind,
            namespace,
            name,
            options,
            ..
        } = *request;
        object::copy_metadata(&mut new, old, "resourceVersion");
        if self.is_real() {
            if same(old_shown, &new) {
                return Ok(old.clone());
            }
            let spec_done =
                kind.gvr.resource != "namespaces" || object::items(&new, &["spec", "finalizers"]).is_empty();
            let grace = object::at(&new, &["metadata", "deletionGracePeriodSeconds"]).and_then(Value::as_i64);
            if object::is_terminating(&new)
                && !object::has_finalizers(&new)
                && spec_done
                && grace.unwrap_or(0) == 0
            {
                plan.release(kind, &new);
                tx.put(self.domain(kind), kind, new);
                let gone = tx.delete(self.domain(kind), kind, namespace, name);
                self.after_delete(tx, kind, namespace, name);
                return Ok(gone.unwrap_or_else(|| old.clone()));
            }
        }
        self.store(tx, kind, new, options)
    }

    fn apply_in(
        &self,
        tx: &mut Transaction<'_>,
        plan: &mut Plan,
        request: &Request<'_>,
        stored: Option<&Value>,
        config: &Value,
        warnings: &mut Vec<String>,
    ) -> Result<(Arc<Value>, bool), ApiError> {
        let Request {
            kind,
            namespace,
            name,
            subresource,
            options,
        } = *request;
        if options.field_manager.is_empty() {
            let fault = Fault::required("fieldManager", "is required for apply patch");
            return Err(ApiError::invalid("meta.k8s.io", "PatchOptions", "", &[fault]));
        }
        let mut config = config.clone();
        self.receive(kind, &mut config, options, warnings)?;
        if object::name(&config).is_empty() {
            object::set_metadata(&mut config, "name", name);
        }
        let api_version = kind.api_version();
        let manager = request.manager(&api_version);
        let sent_version = object::resource_version(&config).to_owned();
        if let Some(live) = stored
            && !sent_version.is_empty()
            && sent_version != object::resource_version(live)
        {
            return Err(ApiError::modified(&kind.gvr, name));
        }
        let live = stored.map(|s| (*present(kind, Arc::new(s.clone()))).clone());
        let shape = kind.shape.of_resource();
        let (mut new, applied) = apply(&shape, live.as_ref(), &config, &manager, options.force)?;
        if let Some(live) = &live {
            for key in ["uid", "resourceVersion"] {
                object::copy_metadata(&mut new, live, key);
            }
        }
        place(kind, namespace, &mut new)?;
        match stored {
            Some(old) => {
                let old = Arc::new(old.clone());
                Ok((
                    self.update_in(tx, plan, request, &old, new, Some(applied))?,
                    false,
                ))
            }
            None if subresource != Subresource::None => Err(ApiError::not_found(&kind.gvr, name)),
            None => {
                object::set_metadata(&mut new, "resourceVersion", "");
                Ok((self.create_in(tx, plan, request, new, Some(applied))?, true))
            }
        }
    }

    /// What depends on the state of the cluster: addresses and ports of services, definitions.
    fn admit(
        &self,
        plan: &mut Plan,
        kind: &Kind,
        old: Option<&Value>,
        new: &mut Value,
    ) -> Result<(), ApiError> {
        match (kind.gvr.group.as_str(), kind.gvr.resource.as_str()) {
            ("", "services") => self.0.allocator.lock().admit(plan, old, new),
            (crd::GROUP, crd::RESOURCE) => {
                crd::establish(old, new);
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

/// Kinds that cannot be replaced without saying which version is replaced.
fn demands_version(kind: &Kind) -> bool {
    kind.custom.is_some()
        || matches!(
            kind.gvr.group.as_str(),
            "apiextensions.k8s.io" | "apiregistration.k8s.io"
        )
        || matches!(kind.gvr.resource.as_str(), "leases")
}

fn status_only(old: &Value, new: &Value) -> Value {
    let mut changed = old.clone();
    object::copy_field(&mut changed, new, "status");
    object::copy_metadata(&mut changed, new, "managedFields");
    changed
}

/// True if what is wanted changed: all but metadata and status.
fn wants_differ(kind: &Kind, old: &Value, new: &Value) -> bool {
    let relevant = |key: &str| {
        !(matches!(key, "metadata" | "apiVersion" | "kind") || (key == "status" && kind.has_status))
    };
    let (Some(old), Some(new)) = (old.as_object(), new.as_object()) else {
        return old != new;
    };
    old.iter()
        .any(|(key, value)| relevant(key) && new.get(key) != Some(value))
        || new.keys().any(|key| relevant(key) && !old.contains_key(key))
}

/// True if nothing changed but, maybe, who touched it when.
fn same(old: &Value, new: &Value) -> bool {
    let untimed = |object: &Value| {
        let mut copy = object.clone();
        if let Some(entries) = object::metadata_mut(&mut copy)
            .get_mut("managedFields")
            .and_then(Value::as_array_mut)
        {
            for entry in entries {
                if let Some(entry) = entry.as_object_mut() {
                    entry.shift_remove("time");
                }
            }
        }
        copy
    };
    old == new || untimed(old) == untimed(new)
}
