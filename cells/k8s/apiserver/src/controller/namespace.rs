// SPDX-License-Identifier: Apache-2.0

//! Empties namespaces that are deleted, and then lets them go.

use std::sync::Arc;
use std::time::Duration;

use hive::{Cell, Job, JobCtx, Jobs};
use serde_json::{Value, json};
use skep_k8s_memory::{
    ApiError, ApiServer, DeleteOptions, Gvr, ListOptions, Subresource, WatchKind, WriteOptions, object,
};

/// Time between two looks at namespaces whose content takes its time.
const AGAIN: Duration = Duration::from_millis(200);

/// Deletes the content of namespaces that are deleted.
/// Requires: [`ApiServer`] of the same hive.
pub fn namespace_controller_cell() -> Cell {
    Cell::module("namespace-controller", "Empties deleted namespaces").run(start)
}

fn start(api: Arc<ApiServer>, jobs: Jobs) -> Result<(), hive::SpawnError> {
    jobs.spawn(Job::once("empty", move |cx: JobCtx| {
        let api = api.clone();
        async move {
            tokio::select! {
                result = follow(&api, &cx) => result,
                () = cx.cancelled() => Ok(()),
            }
        }
    }))
}

fn namespaces() -> Gvr {
    Gvr::new("", "v1", "namespaces")
}

async fn follow(api: &ApiServer, cx: &JobCtx) -> Result<(), ApiError> {
    loop {
        let mut watch = api.watch(&namespaces(), None, &ListOptions::default())?;
        let mut terminating: Vec<String> = Vec::new();
        loop {
            let event = tokio::select! {
                event = watch.next() => event,
                () = tokio::time::sleep(AGAIN), if !terminating.is_empty() => {
                    terminating.retain(|name| !matches!(empty(api, name), Ok(true)));
                    continue;
                }
            };
            let Some(event) = event else { break };
            match event.kind {
                WatchKind::Added | WatchKind::Modified if object::is_terminating(&event.object) => {
                    let name = object::name(&event.object).to_owned();
                    match empty(api, &name) {
                        Ok(true) => cx.health.ok("Running"),
                        Ok(false) if !terminating.contains(&name) => terminating.push(name),
                        Ok(false) => {}
                        Err(error) => {
                            cx.health.degraded("Cannot empty a namespace", &error);
                            terminating.push(name);
                        }
                    }
                }
                WatchKind::Deleted => terminating.retain(|name| name != object::name(&event.object)),
                // The watch fell behind: list again.
                WatchKind::Error => break,
                _ => {}
            }
        }
    }
}

/// Deletes what is in a namespace; true if nothing is left and the namespace may go.
pub(crate) fn empty(api: &ApiServer, name: &str) -> Result<bool, ApiError> {
    let mut left = 0;
    for kind in api
        .registry()
        .all()
        .iter()
        .filter(|k| k.namespaced && k.gvr.version == k.storage_version)
    {
        let everything = ListOptions::default();
        if api.list(&kind.gvr, Some(name), &everything)?.items.is_empty() {
            continue;
        }
        api.delete_collection(&kind.gvr, Some(name), &everything, &DeleteOptions::default())?;
        left += api.list(&kind.gvr, Some(name), &everything)?.items.len();
    }
    if left > 0 {
        return Ok(false);
    }
    let done: Value = json!({ "metadata": { "name": name }, "spec": { "finalizers": [] } });
    let options = WriteOptions {
        field_manager: "namespace-controller".to_owned(),
        ..WriteOptions::default()
    };
    match api.update(&namespaces(), "", name, Subresource::Finalize, done, &options) {
        Ok(_) => Ok(true),
        Err(error) if error.is_not_found() => Ok(true),
        Err(error) => Err(error),
    }
}
