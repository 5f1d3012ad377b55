// SPDX-License-Identifier: Apache-2.0

//! Deletes what deleted objects own, as Kubernetes' garbage collector does.
//!
//! An object goes when none of the owners in its `metadata.ownerReferences` is left. Owners that are deleted in the
//! foreground wait for what they own; owners that are deleted as orphans wait until what they own has forgotten them.
//! The graph holds names only: which object depends on which owner. What an owner is like is asked when it matters.

mod graph;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use hive::{Cell, Job, JobCtx, Jobs};
use serde_json::{Value, json};
use skep_k8s_memory::{
    ApiError, ApiServer, Changed, DeleteOptions, Kind, Patch, Propagation, Subresource, WriteOptions, object,
};

use graph::{Graph, Key, owners};

/// Pause before something that failed is tried again.
const AGAIN: Duration = Duration::from_millis(200);

/// Deletes what deleted objects own.
/// Requires: [`ApiServer`] of the same hive. Runs where no controller manager does.
pub fn garbage_collector_cell() -> Cell {
    Cell::module("garbage-collector", "Deletes what deleted objects own").run(start)
}

fn start(api: Arc<ApiServer>, jobs: Jobs) -> Result<(), hive::SpawnError> {
    jobs.spawn(Job::once("collect", move |cx: JobCtx| {
        let api = api.clone();
        async move {
            tokio::select! {
                () = collect(&api, &cx) => {}
                () = cx.cancelled() => {}
            }
        }
    }))
}

async fn collect(api: &ApiServer, cx: &JobCtx) {
    let mut changes = api.tracker().follow();
    let mut collector = Collector::default();
    loop {
        tokio::select! {
            batch = changes.next() => collector.learn(batch),
            () = tokio::time::sleep(AGAIN), if !collector.is_idle() => {}
        }
        match collector.work(api) {
            Ok(()) => cx.health.ok("Running"),
            Err(error) => cx.health.degraded("Cannot delete what lost its owner", &error),
        }
    }
}

#[derive(Default)]
struct Collector {
    graph: Graph,
    /// To look at: their owners may be gone.
    dependents: BTreeSet<Key>,
    /// To look at: they may wait for dependents no longer.
    owners: BTreeSet<Key>,
}

impl Collector {
    fn is_idle(&self) -> bool {
        self.dependents.is_empty() && self.owners.is_empty()
    }

    fn learn(&mut self, batch: Vec<Changed>) {
        for Changed { object, gone } in batch {
            let key = Key::of(&object);
            let left = if gone {
                self.graph.remove(&key)
            } else {
                self.graph.set(&key, &object)
            };
            self.owners.extend(left);
            // Also if it is there: it may be another of the same name.
            self.dependents.extend(self.graph.dependents(&key));
            if gone {
                self.graph.note_gone(object::uid(&object));
                continue;
            }
            if !owners(&object).is_empty() {
                self.dependents.insert(key.clone());
            }
            if waits(&object, Propagation::Foreground) || waits(&object, Propagation::Orphan) {
                self.owners.insert(key);
            }
        }
    }

    /// Processes the queue; what failed stays in it.
    fn work(&mut self, api: &ApiServer) -> Result<(), ApiError> {
        let mut result = Ok(());
        for owner in std::mem::take(&mut self.owners) {
            if let Err(error) = self.tend(api, &owner) {
                self.owners.insert(owner);
                result = Err(error);
            }
        }
        for dependent in std::mem::take(&mut self.dependents) {
            if let Err(error) = self.judge(api, &dependent) {
                self.dependents.insert(dependent);
                result = Err(error);
            }
        }
        result
    }

    /// Lets an owner go that waits for its dependents, if it can.
    fn tend(&mut self, api: &ApiServer, key: &Key) -> Result<(), ApiError> {
        let Some((owner_kind, owner)) = find(api, key) else {
            return Ok(());
        };
        let uid = object::uid(&owner);
        let means_it = |reference: &Value| object::text(reference, &["uid"]) == uid;
        let dependents: Vec<(Key, Arc<Kind>, Arc<Value>)> = self
            .graph
            .dependents(key)
            .into_iter()
            .filter_map(|key| find(api, &key).map(|(kind, object)| (key, kind, object)))
            .filter(|(_, _, object)| owners(object).iter().any(means_it))
            .collect();
        if waits(&owner, Propagation::Orphan) {
            for (_, kind, object) in &dependents {
                forget_owners(api, kind, object, means_it)?;
            }
            return drop_finalizer(api, &owner_kind, &owner, Propagation::ORPHAN_FINALIZER);
        }
        if !waits(&owner, Propagation::Foreground) {
            return Ok(());
        }
        let blocking = dependents.into_iter().filter_map(|(key, _, object)| {
            let blocks = owners(&object).iter().any(|r| means_it(r) && blocks_owner(r));
            blocks.then_some(key)
        });
        let blocking: Vec<Key> = blocking.collect();
        if blocking.is_empty() {
            return drop_finalizer(api, &owner_kind, &owner, Propagation::FOREGROUND_FINALIZER);
        }
        self.dependents.extend(blocking);
        Ok(())
    }

    /// Deletes a dependent if it has no owner left; else makes it forget those that are gone.
    fn judge(&self, api: &ApiServer, key: &Key) -> Result<(), ApiError> {
        let Some((kind, object)) = find(api, key) else {
            return Ok(());
        };
        if object::is_terminating(&object) {
            return Ok(());
        }
        let (mut there, mut waiting, mut lost) = (false, false, Vec::new());
        for reference in owners(&object) {
            match self.owner(api, &kind, &object, reference) {
                Owner::Unknown => return Ok(()),
                Owner::There => {
                    there = true;
                    continue;
                }
                Owner::Waiting => waiting = true,
                Owner::Gone => {}
            }
            lost.push(object::text(reference, &["uid"]));
        }
        if lost.is_empty() {
            return Ok(());
        }
        if there {
            let is_lost = |reference: &Value| lost.contains(&object::text(reference, &["uid"]));
            return forget_owners(api, &kind, &object, is_lost);
        }
        let propagation = if waiting && !self.graph.dependents(key).is_empty() {
            // The owner waits for all that is below it.
            Propagation::Foreground
        } else if has_finalizer(&object, Propagation::ORPHAN_FINALIZER) {
            Propagation::Orphan
        } else if has_finalizer(&object, Propagation::FOREGROUND_FINALIZER) {
            Propagation::Foreground
        } else {
            Propagation::Background
        };
        let options = DeleteOptions {
            uid: Some(object::uid(&object).to_owned()),
            propagation: Some(propagation),
            ..DeleteOptions::default()
        };
        unless_changed(api.delete(&kind.stored(), &key.namespace, &key.name, &options))
    }

    fn owner(&self, api: &ApiServer, kind: &Kind, dependent: &Value, reference: &Value) -> Owner {
        let text = |key: &str| object::text(reference, &[key]);
        let uid = text("uid");
        if self.graph.is_gone(uid) {
            return Owner::Gone;
        }
        let Some(owner_kind) = api.registry().by_kind(text("apiVersion"), text("kind")) else {
            return Owner::Unknown;
        };
        if owner_kind.namespaced && !kind.namespaced {
            tracing::warn!(
                kind = %kind.kind, name = object::name(dependent),
                owner_kind = %owner_kind.kind, owner = text("name"),
                "Keeping cluster-scoped object with a namespaced owner"
            );
            return Owner::Unknown;
        }
        let namespace = if owner_kind.namespaced {
            object::namespace(dependent)
        } else {
            ""
        };
        match api.get(&owner_kind.gvr, namespace, text("name")) {
            Ok(owner) if object::uid(&owner) == uid => {
                if blocks_owner(reference) && waits(&owner, Propagation::Foreground) {
                    Owner::Waiting
                } else {
                    Owner::There
                }
            }
            _ => Owner::Gone,
        }
    }
}

/// What became of an owner.
enum Owner {
    There,
    /// It is being deleted, after its dependents.
    Waiting,
    Gone,
    /// Its kind is not served, or it cannot be an owner. Nothing is deleted on a guess.
    Unknown,
}

fn find(api: &ApiServer, key: &Key) -> Option<(Arc<Kind>, Arc<Value>)> {
    let kind = api.registry().stored_kind(&key.group, &key.kind)?;
    let object = api.get(&kind.gvr, &key.namespace, &key.name).ok()?;
    Some((kind, object))
}

fn blocks_owner(reference: &Value) -> bool {
    reference.get("blockOwnerDeletion").and_then(Value::as_bool) == Some(true)
}

fn has_finalizer(object: &Value, finalizer: &str) -> bool {
    object::items(object, &["metadata", "finalizers"])
        .iter()
        .any(|f| f == finalizer)
}

/// True if the object is being deleted this way.
fn waits(object: &Value, propagation: Propagation) -> bool {
    object::is_terminating(object)
        && propagation
            .finalizer()
            .is_some_and(|finalizer| has_finalizer(object, finalizer))
}

fn forget_owners(
    api: &ApiServer,
    kind: &Kind,
    object: &Value,
    forget: impl Fn(&Value) -> bool,
) -> Result<(), ApiError> {
    let kept: Vec<&Value> = owners(object).iter().filter(|r| !forget(r)).collect();
    change(api, kind, object, json!({ "ownerReferences": kept }))
}

fn drop_finalizer(api: &ApiServer, kind: &Kind, object: &Value, finalizer: &str) -> Result<(), ApiError> {
    let kept: Vec<&Value> = object::items(object, &["metadata", "finalizers"])
        .iter()
        .filter(|f| *f != finalizer)
        .collect();
    change(api, kind, object, json!({ "finalizers": kept }))
}

/// Changes metadata of exactly this version of an object.
fn change(api: &ApiServer, kind: &Kind, object: &Value, mut metadata: Value) -> Result<(), ApiError> {
    metadata["resourceVersion"] = object::resource_version(object).into();
    let patch = Patch::Merge(json!({ "metadata": metadata }));
    let options = WriteOptions {
        field_manager: "garbage-collector".to_owned(),
        ..WriteOptions::default()
    };
    unless_changed(api.patch(
        &kind.stored(),
        object::namespace(object),
        object::name(object),
        Subresource::None,
        &patch,
        &options,
    ))
}

/// An object that changed or went meanwhile is looked at again when that is heard of.
fn unless_changed<T>(result: Result<T, ApiError>) -> Result<(), ApiError> {
    match result {
        Ok(_) => Ok(()),
        Err(error) if error.is_not_found() || error.is_conflict() => Ok(()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests;
