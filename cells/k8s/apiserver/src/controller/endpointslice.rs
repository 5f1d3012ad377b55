// SPDX-License-Identifier: Apache-2.0

//! Keeps EndpointSlices in step with Services that have a selector, and Pods, as Kubernetes' controller does.

mod desired;
mod place;
mod world;

use std::sync::Arc;
use std::time::Duration;

use hive::{Backoff, Cell, Job, JobCtx, Jobs, Retry};
use parking_lot::Mutex;
use serde_json::Value;
use skep_k8s_client::{ApiError, Client, DeleteOptions, Preconditions, Subresource, WriteOptions};
use skep_k8s_memory::object;
use skep_k8s_types::slim::{EndpointSlice, Node, Pod, Service};
use skep_k8s_types::{Kind, Resource};
use tokio::sync::Notify;

use super::follow::follow;
use place::Change;
use world::{Source, World};

/// Name under which slices are managed; the same as in Kubernetes, so that either can take over.
pub(crate) const MANAGER: &str = "endpointslice-controller.k8s.io";

/// Pause after a failed write.
const RETRY: Duration = Duration::from_millis(100);

/// Endpoint slices from services and pods.
/// Requires: `Arc<dyn Client>` that may write. Runs where no controller manager does.
pub fn endpointslice_controller_cell() -> Cell {
    Cell::module("endpointslice-controller", "Makes endpoint slices of services").run(start)
}

struct Controller {
    client: Arc<dyn Client>,
    world: Mutex<World>,
    changed: Notify,
}

fn start(client: Arc<dyn Client>, jobs: Jobs) -> Result<(), hive::SpawnError> {
    let controller = Arc::new(Controller {
        client,
        world: Mutex::new(World::default()),
        changed: Notify::new(),
    });
    let sources = [
        ("watch-services", Source::Services, Service::kind()),
        ("watch-pods", Source::Pods, Pod::kind()),
        ("watch-nodes", Source::Nodes, Node::kind()),
        ("watch-slices", Source::Slices, EndpointSlice::kind()),
    ];
    for (name, source, kind) in sources {
        let controller = controller.clone();
        let retry = Retry::forever().backoff(Backoff::exponential(RETRY, Duration::from_secs(5)));
        jobs.spawn(
            Job::once(name, move |cx: JobCtx| {
                let (controller, kind) = (controller.clone(), kind.clone());
                async move { controller.listen(source, &kind, &cx).await }
            })
            .retry(retry),
        )?;
    }
    jobs.spawn(Job::once("reconcile", move |cx: JobCtx| {
        let controller = controller.clone();
        async move { controller.reconcile(&cx).await }
    }))
}

impl Controller {
    async fn listen(&self, source: Source, kind: &Kind, cx: &JobCtx) -> Result<(), ApiError> {
        let following = follow(&*self.client, kind, |news| {
            self.world.lock().learn(source, news);
            self.changed.notify_one();
        });
        tokio::select! {
            result = following => result,
            () = cx.cancelled() => Ok(()),
        }
    }

    async fn reconcile(&self, cx: &JobCtx) {
        loop {
            let next = self.world.lock().next_dirty();
            let Some(key) = next else {
                tokio::select! {
                    () = self.changed.notified() => continue,
                    () = cx.cancelled() => return,
                }
            };
            let changes = self.world.lock().changes(&key);
            match self.write(changes).await {
                Ok(()) => cx.health.ok("Running"),
                Err(error) => {
                    cx.health.degraded("Cannot write endpoint slices", &error);
                    self.world.lock().again(key);
                    tokio::select! {
                        () = tokio::time::sleep(RETRY) => {}
                        () = cx.cancelled() => return,
                    }
                }
            }
        }
    }

    async fn write(&self, changes: Vec<Change>) -> Result<(), ApiError> {
        let kind = EndpointSlice::kind();
        let options = WriteOptions {
            field_manager: "endpointslice-controller".to_owned(),
            ..WriteOptions::default()
        };
        for change in changes {
            match change {
                Change::Create(slice) => {
                    let namespace = object::namespace(&slice).to_owned();
                    let created = self.client.create(&kind, &namespace, slice, &options).await;
                    match created {
                        Ok(made) => self.remember(&made.to_value()?),
                        // The namespace is going: so are its services.
                        Err(error) if error.status().is_some_and(|s| matches!(s.code, 403 | 404)) => {}
                        Err(error) => return Err(error),
                    }
                }
                Change::Update(slice) => {
                    let namespace = object::namespace(&slice).to_owned();
                    let updated = self
                        .client
                        .update(&kind, &namespace, Subresource::None, slice, &options)
                        .await;
                    match updated {
                        Ok(made) => self.remember(&made.to_value()?),
                        // Its deletion will be heard of.
                        Err(error) if error.is_not_found() => {}
                        Err(error) => return Err(error),
                    }
                }
                Change::Delete(slice) => {
                    let preconditions = Preconditions {
                        uid: object::uid(&slice).into(),
                        ..Preconditions::default()
                    };
                    let options = DeleteOptions {
                        preconditions,
                        ..DeleteOptions::default()
                    };
                    let (namespace, name) = (object::namespace(&slice), object::name(&slice));
                    match self.client.delete(&kind, namespace, name, &options).await {
                        Ok(()) => {}
                        Err(error) if error.is_not_found() || error.is_conflict() => {}
                        Err(error) => return Err(error),
                    }
                    self.world.lock().forget_slice(&slice);
                }
            }
        }
        Ok(())
    }

    /// Takes over what was written before the watch reports it, so that it is not written twice.
    fn remember(&self, slice: &Arc<Value>) {
        self.world.lock().remember_slice(slice);
    }
}

#[cfg(test)]
mod tests;
