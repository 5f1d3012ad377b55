// SPDX-License-Identifier: Apache-2.0

//! Deletion: preconditions, finalizers, grace periods, and what happens to owned objects.

use std::sync::Arc;

use serde_json::Value;

use super::options::{DeleteOptions, ListOptions, Propagation};
use super::service::Plan;
use super::write::Deleted;
use super::{ApiServer, List, crd, present};
use crate::error::ApiError;
use crate::gvr::Gvr;
use crate::kinds::Kind;
use crate::object;
use crate::tracker::Transaction;

impl ApiServer {
    /// Deletes an object, or marks it as terminating if something has to happen first.
    pub fn delete(
        &self,
        gvr: &Gvr,
        namespace: &str,
        name: &str,
        options: &DeleteOptions,
    ) -> Result<Deleted, ApiError> {
        let kind = self.kind(gvr)?;
        let deleted = self.tracker().attempt(!options.dry_run, |tx| {
            let mut plan = Plan::default();
            let deleted = self.delete_in(tx, &mut plan, &kind, namespace, name, options)?;
            if !options.dry_run {
                self.0.allocator.lock().commit(plan);
            }
            Ok::<_, ApiError>(deleted)
        })?;
        Ok(match deleted {
            Deleted::Gone(object) => Deleted::Gone(present(&kind, object)),
            Deleted::Terminating(object) => Deleted::Terminating(present(&kind, object)),
        })
    }

    /// Deletes all objects that `select` selects; returns them as they were.
    pub fn delete_collection(
        &self,
        gvr: &Gvr,
        namespace: Option<&str>,
        select: &ListOptions,
        options: &DeleteOptions,
    ) -> Result<List, ApiError> {
        let list = self.list(gvr, namespace, select)?;
        for object in &list.items {
            match self.delete(gvr, object::namespace(object), object::name(object), options) {
                Ok(_) => {}
                // Another request was faster.
                Err(error) if error.is_not_found() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(list)
    }

    fn delete_in(
        &self,
        tx: &mut Transaction<'_>,
        plan: &mut Plan,
        kind: &Kind,
        namespace: &str,
        name: &str,
        options: &DeleteOptions,
    ) -> Result<Deleted, ApiError> {
        let domain = self.domain(kind);
        let old = tx
            .get(domain, &kind.stored(), namespace, name)
            .ok_or_else(|| ApiError::not_found(&kind.gvr, name))?;
        check_preconditions(kind, name, &old, options)?;
        if self.is_real() && kind.gvr.group.is_empty() && kind.gvr.resource == "namespaces" {
            if matches!(name, "default" | "kube-system" | "kube-public") {
                return Err(ApiError::forbidden(
                    &kind.gvr,
                    name,
                    "this namespace may not be deleted",
                ));
            }
            if !object::items(&old, &["spec", "finalizers"]).is_empty() {
                return Ok(Deleted::Terminating(self.terminate(
                    tx,
                    kind,
                    &old,
                    (*old).clone(),
                    None,
                )));
            }
        }
        let grace = if self.is_real() {
            grace_seconds(kind, &old, options)
        } else {
            0
        };
        let mut marked = (*old).clone();
        if let Some(propagation) = options.propagation.filter(|_| self.is_real()) {
            propagate(&mut marked, propagation);
        }
        let waits = object::has_finalizers(&marked) && self.is_real();
        if waits || grace > 0 {
            let grace = (kind.gvr.resource == "pods" && kind.gvr.group.is_empty()).then_some(grace);
            return Ok(Deleted::Terminating(
                self.terminate(tx, kind, &old, marked, grace),
            ));
        }
        plan.release(kind, &old);
        let gone = tx.delete(domain, kind, namespace, name);
        self.after_delete(tx, kind, namespace, name);
        Ok(Deleted::Gone(gone.unwrap_or(old)))
    }

    /// Marks an object as terminating; `new` is the object with the finalizers that it has from now on. Later
    /// deletions can only shorten its grace period and change its finalizers.
    fn terminate(
        &self,
        tx: &mut Transaction<'_>,
        kind: &Kind,
        old: &Arc<Value>,
        mut new: Value,
        grace: Option<i64>,
    ) -> Arc<Value> {
        let before = object::at(old, &["metadata", "deletionGracePeriodSeconds"]).and_then(Value::as_i64);
        let shorter = matches!((before, grace), (Some(before), Some(grace)) if grace < before);
        if object::is_terminating(old) && !shorter {
            return if new == **old {
                old.clone()
            } else {
                tx.put(self.domain(kind), kind, new)
            };
        }
        let end = jiff::Timestamp::from_second(
            jiff::Timestamp::now()
                .as_second()
                .saturating_add(grace.unwrap_or(0).clamp(0, i64::from(u32::MAX))),
        );
        let end = end.map_or_else(|_| object::now(), |t| t.to_string());
        object::set_metadata(&mut new, "deletionTimestamp", &end);
        object::metadata_mut(&mut new)
            .insert("deletionGracePeriodSeconds".to_owned(), grace.unwrap_or(0).into());
        if kind.gvr.group.is_empty() && kind.gvr.resource == "namespaces" {
            object::metadata_mut(&mut new).shift_remove("deletionGracePeriodSeconds");
            object::map_mut(&mut new, "status").insert("phase".to_owned(), "Terminating".into());
        }
        if kind.counts_generations {
            let next = object::generation(old) + 1;
            object::metadata_mut(&mut new).insert("generation".to_owned(), next.into());
        }
        tx.put(self.domain(kind), kind, new)
    }

    /// What goes with an object, and what comes in its place.
    pub(super) fn after_delete(&self, tx: &mut Transaction<'_>, kind: &Kind, namespace: &str, name: &str) {
        if !self.is_real() {
            return;
        }
        self.restore_in_namespace(tx, kind, namespace, name);
        if kind.gvr.group != crd::GROUP || kind.gvr.resource != crd::RESOURCE {
            return;
        }
        let Some((resource, group)) = name.split_once('.') else {
            return;
        };
        if let Some(kind) = self.registry().remove(group, resource).first() {
            for object in tx.list(self.domain(kind), &kind.stored(), None) {
                tx.delete(
                    self.domain(kind),
                    kind,
                    object::namespace(&object),
                    object::name(&object),
                );
            }
        }
        self.establish_others(tx, kind);
    }
}

/// Adds the finalizer of `propagation` to the object, and removes those of other policies.
fn propagate(object: &mut Value, propagation: Propagation) {
    let wanted = propagation.finalizer();
    let mut finalizers = object::items(object, &["metadata", "finalizers"]).to_vec();
    finalizers.retain(|finalizer| {
        let name = finalizer.as_str();
        name == wanted
            || !matches!(
                name,
                Some(Propagation::FOREGROUND_FINALIZER | Propagation::ORPHAN_FINALIZER)
            )
    });
    if let Some(wanted) = wanted
        && !finalizers.iter().any(|finalizer| finalizer == wanted)
    {
        finalizers.push(wanted.into());
    }
    let metadata = object::metadata_mut(object);
    if finalizers.is_empty() {
        metadata.shift_remove("finalizers");
    } else {
        metadata.insert("finalizers".to_owned(), finalizers.into());
    }
}

fn check_preconditions(
    kind: &Kind,
    name: &str,
    old: &Value,
    options: &DeleteOptions,
) -> Result<(), ApiError> {
    let check = |what: &str, wanted: &Option<String>, found: &str| match wanted {
        Some(wanted) if wanted != found => Err(ApiError::conflict(
            &kind.gvr,
            name,
            &format!("Precondition failed: {what} in precondition: {wanted}, {what} in object meta: {found}"),
        )),
        _ => Ok(()),
    };
    check("UID", &options.uid, object::uid(old))?;
    check(
        "ResourceVersion",
        &options.resource_version,
        object::resource_version(old),
    )
}

/// Seconds that a pod may take: none unless it runs somewhere.
fn grace_seconds(kind: &Kind, old: &Value, options: &DeleteOptions) -> i64 {
    if kind.gvr.resource != "pods" || !kind.gvr.group.is_empty() {
        return 0;
    }
    if object::text(old, &["spec", "nodeName"]).is_empty()
        || matches!(object::text(old, &["status", "phase"]), "Failed" | "Succeeded")
    {
        return 0;
    }
    let own = object::at(old, &["spec", "terminationGracePeriodSeconds"]).and_then(Value::as_i64);
    options.grace_seconds.or(own).unwrap_or(30).max(0)
}
