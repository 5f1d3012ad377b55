// SPDX-License-Identifier: Apache-2.0

//! The controller: endpoints in, slices out. A key is the name of a slice.
//!
//! Nothing is written before all lists are complete: an incomplete one would remove endpoints from slices.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::ready;
use hive::Cfg;
use skep_base_limiter::TokenBucket;
use skep_base_metrics::workqueue::WorkqueueRecorder;
use skep_identity_labels::LabelFilter;
use skep_k8s_client::Client;
use skep_k8s_controller::{Change, Controller, Reconciler, RequestError, Store, Watches, Work};
use skep_k8s_crds::endpoint::{CiliumEndpointSlice, CoreCiliumEndpoint};
use skep_k8s_types::ObjectKey;
use skep_k8s_types::slim::{CiliumEndpoint, CiliumIdentity, CiliumNode, Namespace, Pod, Str};
use tokio::time::Instant;

use crate::config::Config;
use crate::metrics::{INSERTED, REMOVED, SliceMetrics};
use crate::objects::entry;
use crate::slices::{Changes, Slices};
use crate::slim::Pods;
use crate::write::{Outcome, write};

/// The annotation of namespaces whose slices are written first.
const PRIORITY: (&str, &str) = ("cilium.io/ces-namespace", "priority");
/// How long a change waits for others of its slice.
const COALESCE: Duration = Duration::from_millis(500);
/// Failures in a row after which a slice is reported as failed for good. It is written again all the same.
const TRANSIENT: u32 = 15;

#[derive(Debug, Clone)]
pub(crate) enum Source {
    Endpoints,
    /// Pods, whose identities have the name of the cluster and the labels that count.
    Pods(String, LabelFilter),
}

/// Keys of the objects that are watched: what else counts of them is in [`Slices`] and [`Pods`].
struct Stores {
    slices: Store<CiliumEndpointSlice>,
    namespaces: Store<Namespace>,
    nodes: Store<CiliumNode>,
    endpoints: Store<CiliumEndpoint>,
    pods: Store<Pod>,
    identities: Store<CiliumIdentity>,
}

pub(crate) struct SliceController {
    config: Cfg<Config>,
    client: Arc<dyn Client>,
    metrics: Arc<SliceMetrics>,
    stores: Stores,
    /// What endpoints are made of, if not of CiliumEndpoints.
    pods: Option<Pods>,
    /// Endpoints before all slices are known.
    early: Option<BTreeMap<ObjectKey, Option<CoreCiliumEndpoint>>>,
    slices: Slices,
    bucket: TokenBucket,
    /// Namespaces whose slices are written first.
    priority: HashSet<Str>,
}

pub(crate) fn controller(
    config: &Cfg<Config>,
    source: &Source,
    client: &Arc<dyn Client>,
    metrics: &Arc<SliceMetrics>,
    queue: WorkqueueRecorder,
) -> Controller<SliceController> {
    let most = usize::try_from(config.ces_max_ciliumendpoints_per_ces).unwrap_or(usize::MAX);
    let limit = config.ces_rate_limits.for_nodes(0);
    let slices = SliceController {
        config: config.clone(),
        client: client.clone(),
        metrics: metrics.clone(),
        stores: Stores {
            slices: Store::of_keys(),
            namespaces: Store::of_keys(),
            nodes: Store::of_keys(),
            endpoints: Store::of_keys(),
            pods: Store::of_keys(),
            identities: Store::of_keys(),
        },
        pods: match source {
            Source::Endpoints => None,
            Source::Pods(cluster, filter) => Some(Pods::new(cluster, filter.clone())),
        },
        early: Some(BTreeMap::new()),
        slices: Slices::new(most),
        bucket: TokenBucket::new(limit.limit, limit.burst.into()),
        priority: HashSet::new(),
    };
    let controller = Controller::new(slices, queue)
        .concurrency(1)
        .watch_all::<CiliumEndpointSlice>(client)
        .watch_all::<Namespace>(client)
        .watch_all::<CiliumNode>(client);
    match source {
        Source::Endpoints => controller.watch_all::<CiliumEndpoint>(client),
        Source::Pods(..) => controller
            .watch_all::<Pod>(client)
            .watch_all::<CiliumIdentity>(client),
    }
}

impl Reconciler for SliceController {
    type Key = Str;
    type Output = Option<(Changes, Outcome)>;
    type Error = RequestError;
    const KEYS: &'static str = "slices";
    const FAILED: &'static str = "not written, retrying";

    fn reconcile(&mut self, name: &Str) -> Work<Self> {
        let Some((due, changes)) = self.slices.write(name) else {
            self.slices.ended(name, false);
            return ready(Ok(None)).boxed();
        };
        self.bucket.take();
        let queue = if self.has_priority(name) {
            "fast"
        } else {
            "standard"
        };
        let delay = changes.since.elapsed().as_secs_f64();
        self.metrics.delay.with([queue]).observe(delay);
        let (client, name) = (self.client.clone(), name.clone());
        Box::pin(async move { Ok(Some((changes, write(client, &name, due).await))) })
    }

    fn finished(
        &mut self,
        name: &Str,
        result: Result<Self::Output, RequestError>,
    ) -> Result<Option<Duration>, RequestError> {
        let Some((changes, outcome)) = result? else {
            return Ok(None);
        };
        let (object, error) = match outcome {
            Outcome::Written(object) => (Some(Some(object)), None),
            Outcome::Deleted => (Some(None), None),
            Outcome::Changed(object, error) => (Some(object), Some(error)),
            Outcome::Failed(error) => (None, Some(error)),
        };
        let failures = self.slices.ended(name, error.is_some());
        match object {
            Some(Some(object)) => {
                self.slices.observe(&object);
                self.stores.slices.upserted(object);
            }
            Some(None) => {
                self.slices.observe_gone(name);
                self.stores.slices.deleted(&ObjectKey {
                    name: name.clone(),
                    ..ObjectKey::default()
                });
            }
            None => {}
        }
        if let Some(error) = error {
            self.slices.forget_change(name);
            let failure = if failures <= TRANSIENT {
                "transient"
            } else {
                "fatal"
            };
            self.metrics.syncs.with(["fail", failure]).inc();
            return Err(error);
        }
        self.metrics.syncs.with(["success", ""]).inc();
        self.metrics.endpoints.observe(changes.endpoints as f64);
        for (opcode, count) in [(INSERTED, changes.inserted), (REMOVED, changes.removed)] {
            if count > 0 {
                self.metrics.changes.with([opcode]).observe(count as f64);
            }
        }
        Ok(None)
    }

    fn affected_by_results(&mut self) -> Vec<Str> {
        self.changed()
    }

    fn synced(&mut self) -> Vec<Str> {
        // Endpoints that cannot be read are kept as the slices have them.
        let invalid = match self.pods {
            Some(_) => self.stores.pods.watch().invalid(),
            None => self.stores.endpoints.watch().invalid(),
        };
        let unreadable = invalid.keys().cloned().collect();
        let early = self.early.take().unwrap_or_default();
        match &self.pods {
            Some(pods) => self.slices.replace_endpoints(pods.entries(), &unreadable),
            None => self.slices.replace_endpoints(early.into_iter(), &unreadable),
        }
        self.changed()
    }

    fn delay(&self, _name: &Str) -> Duration {
        COALESCE
    }

    fn has_priority(&self, name: &Str) -> bool {
        let namespace = self.slices.namespace(name);
        namespace.is_some_and(|namespace| self.priority.contains(namespace))
    }

    fn wait(&self) -> Duration {
        self.bucket.clone().wait(Instant::now())
    }

    fn total(&self) -> usize {
        self.slices.len().1
    }

    fn summary(&self, failed: usize) -> String {
        let (endpoints, slices) = self.slices.len();
        match failed {
            0 => format!("{endpoints} endpoints in {slices} slices"),
            _ => format!("{failed} {} {}", Self::KEYS, Self::FAILED),
        }
    }
}

impl SliceController {
    /// Slices that may have to be written, after a change of what they are made of.
    fn changed(&mut self) -> Vec<Str> {
        if let (Some(pods), None) = (&mut self.pods, &self.early) {
            pods.settle(&mut self.slices);
        }
        self.slices.take_changed().into_iter().collect()
    }
}

impl Watches<CiliumEndpointSlice> for SliceController {
    fn store(&mut self) -> &mut Store<CiliumEndpointSlice> {
        &mut self.stores.slices
    }

    fn affected(&mut self, change: &Change<CiliumEndpointSlice>) -> Vec<Str> {
        match &change.new {
            Some(slice) => self.slices.observe(slice),
            None => self.slices.observe_gone(&change.key.name),
        }
        self.changed()
    }
}

impl Watches<CiliumEndpoint> for SliceController {
    fn store(&mut self) -> &mut Store<CiliumEndpoint> {
        &mut self.stores.endpoints
    }

    fn affected(&mut self, change: &Change<CiliumEndpoint>) -> Vec<Str> {
        let key = change.key.clone();
        let new = change.new.as_ref().map(|endpoint| entry(endpoint));
        match (&mut self.early, new) {
            (Some(early), Some(new)) => _ = early.insert(key, new),
            (Some(early), None) => _ = early.remove(&key),
            (None, Some(new)) => {
                if let Some(entry) = new {
                    self.slices.upsert(key, entry);
                }
            }
            (None, None) => self.slices.delete(&key),
        }
        self.changed()
    }
}

impl Watches<Namespace> for SliceController {
    fn store(&mut self) -> &mut Store<Namespace> {
        &mut self.stores.namespaces
    }

    fn affected(&mut self, change: &Change<Namespace>) -> Vec<Str> {
        let name = &change.key.name;
        // The pods of a namespace go before it: a deletion changes nothing of them.
        if let (Some(pods), Some(namespace)) = (&mut self.pods, &change.new) {
            pods.set_namespace(name, &namespace.metadata.labels);
        }
        let annotations = change
            .new
            .as_ref()
            .map(|namespace| &namespace.metadata.annotations);
        let is_priority = annotations.is_some_and(|all| all.get(PRIORITY.0) == Some(PRIORITY.1));
        let is_other = match is_priority {
            true => self.priority.insert(name.clone()),
            false => self.priority.remove(name),
        };
        let mut changed = self.changed();
        if is_other {
            changed.extend(self.slices.of_namespace(name).cloned());
        }
        changed
    }
}

impl Watches<CiliumNode> for SliceController {
    fn store(&mut self) -> &mut Store<CiliumNode> {
        &mut self.stores.nodes
    }

    fn affected(&mut self, change: &Change<CiliumNode>) -> Vec<Str> {
        match (&mut self.pods, &change.new) {
            (Some(pods), Some(node)) => pods.set_node(node),
            (Some(pods), None) => pods.remove_node(&change.key.name),
            (None, _) => {}
        }
        let nodes = self.stores.nodes.keys().len();
        let limit = self.config.ces_rate_limits.for_nodes(nodes);
        self.bucket.set(limit.limit, limit.burst.into(), Instant::now());
        self.changed()
    }
}

impl Watches<Pod> for SliceController {
    fn store(&mut self) -> &mut Store<Pod> {
        &mut self.stores.pods
    }

    fn affected(&mut self, change: &Change<Pod>) -> Vec<Str> {
        match (&mut self.pods, &change.new) {
            (Some(pods), Some(pod)) => pods.set_pod(change.key.clone(), pod),
            (Some(pods), None) => pods.remove_pod(&change.key),
            (None, _) => {}
        }
        self.changed()
    }
}

impl Watches<CiliumIdentity> for SliceController {
    fn store(&mut self) -> &mut Store<CiliumIdentity> {
        &mut self.stores.identities
    }

    fn affected(&mut self, change: &Change<CiliumIdentity>) -> Vec<Str> {
        match (&mut self.pods, &change.new) {
            (Some(pods), Some(identity)) => pods.set_identity(identity),
            (Some(pods), None) => pods.remove_identity(&change.key.name),
            (None, _) => {}
        }
        self.changed()
    }
}
