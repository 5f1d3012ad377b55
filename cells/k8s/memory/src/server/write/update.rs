// SPDX-License-Identifier: Apache-2.0

//! Update, of a whole object or a part of it.

use std::sync::Arc;

use serde_json::Value;

use super::{Request, Subresource, check_name, place};
use crate::error::{ApiError, Fault};
use crate::kinds::Kind;
use crate::object;
use crate::patch::apply::Ownership;
use crate::schema::fill_required;
use crate::server::service::Plan;
use crate::server::{ApiServer, defaults, present, validate};
use crate::tracker::Transaction;

impl ApiServer {
    pub(in crate::server) fn update_in(
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
                Subresource::Status => new = status_only(kind, &old_shown, &new),
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
                self.admit(tx, plan, kind, Some(&old_shown), &mut new)?;
                if kind.counts_generations && wants_differ(kind, &old_shown, &new) {
                    let next = object::generation(old) + 1;
                    object::metadata_mut(&mut new).insert("generation".to_owned(), next.into());
                }
            }
            validate::object(kind, Some(&old_shown), &new, self.schemas())?;
            fill_required(&kind.shape, &mut new);
            ownership.finish(&shape, Some(&old_shown), &mut new, &manager);
        } else {
            if subresource == Subresource::Status {
                new = status_only(kind, &old_shown, &new);
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

/// A write of the status. Of nodes and pods it may change labels and annotations too.
fn status_only(kind: &Kind, old: &Value, new: &Value) -> Value {
    let mut changed = old.clone();
    object::copy_field(&mut changed, new, "status");
    if kind.gvr.group.is_empty() && matches!(kind.gvr.resource.as_str(), "nodes" | "pods") {
        object::copy_metadata(&mut changed, new, "labels");
        object::copy_metadata(&mut changed, new, "annotations");
    }
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
