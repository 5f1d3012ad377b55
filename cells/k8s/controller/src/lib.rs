// SPDX-License-Identifier: Apache-2.0

//! The one runtime of controllers.
//!
//! A controller is what it watches, which keys a change of an object affects, and what it does about a key:
//!
//! - [`Store`] holds the last valid state of the objects of a kind;
//! - [`Watches::affected`] maps a [`Change`] of an object to keys;
//! - [`Reconciler::reconcile`] computes from the stores what must be written for a key, and returns the requests as a future;
//! - [`Reconciler::finished`] takes in their result, if the controller keeps any of it.
//!
//! The runtime does the rest: it begins when all sources have delivered their lists, takes a key at most once at a time and
//! several keys at once, repeats what failed with a backoff, pauses when the API server does not answer, reports
//! `workqueue_*` metrics and health, and names invalid objects there.
//!
//! ```
//! use std::sync::Arc;
//!
//! use skep_base_metrics::workqueue::WorkqueueRecorder;
//! use skep_k8s_client::{Client, DeleteOptions};
//! use skep_k8s_controller::{Change, Controller, Reconciler, RequestError, Store, Watches, Work, job, request};
//! use skep_k8s_types::slim::{Pod, PodPhase};
//! use skep_k8s_types::{ObjectKey, Resource};
//!
//! /// Deletes pods that have succeeded.
//! struct Cleanup {
//!     client: Arc<dyn Client>,
//!     pods: Store<Pod>,
//! }
//!
//! impl Reconciler for Cleanup {
//!     type Key = ObjectKey;
//!     type Output = ();
//!     type Error = RequestError;
//!     const KEYS: &'static str = "pods";
//!     const FAILED: &'static str = "are not deleted";
//!
//!     fn reconcile(&mut self, key: &ObjectKey) -> Work<Self> {
//!         let pod = self.pods.get(key);
//!         let has_ended = pod.is_some_and(|pod| pod.status.phase == PodPhase::Succeeded);
//!         let (client, key) = (self.client.clone(), key.clone());
//!         Box::pin(async move {
//!             if has_ended {
//!                 let options = DeleteOptions::default();
//!                 request(client.delete(&Pod::kind(), &key.namespace, &key.name, &options)).await?;
//!             }
//!             Ok(())
//!         })
//!     }
//!
//!     fn total(&self) -> usize {
//!         self.pods.keys().len()
//!     }
//! }
//!
//! impl Watches<Pod> for Cleanup {
//!     fn store(&mut self) -> &mut Store<Pod> {
//!         &mut self.pods
//!     }
//!
//!     fn affected(&mut self, change: &Change<Pod>) -> Vec<ObjectKey> {
//!         vec![change.key.clone()]
//!     }
//! }
//!
//! fn cleanup(client: Arc<dyn Client>, queue: WorkqueueRecorder) -> hive::OnceJob {
//!     job("cleanup", move || {
//!         let (client, pods) = (client.clone(), Store::default());
//!         Controller::new(Cleanup { client: client.clone(), pods }, queue.clone()).watch_all::<Pod>(&client)
//!     })
//! }
//! ```
//!
//! Tables are sources by the stream of their changes ([`Controller::source`]), with
//! [`wait_for`](Controller::wait_for) their initialization. The other methods of [`Reconciler`] are for batching, priority,
//! limits of the rate, metrics and health.

mod error;
mod queue;
mod reconciler;
mod runtime;
mod store;
mod switch;
#[cfg(test)]
mod tests;

pub use error::{Failure, REQUEST_TIMEOUT, RequestError, Retry, request};
pub use reconciler::{Reconciler, Watches, Work};
pub use runtime::{Controller, job};
pub use store::{Change, Store};
