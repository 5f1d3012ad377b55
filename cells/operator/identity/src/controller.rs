// SPDX-License-Identifier: Apache-2.0

//! The controller: pods, namespaces and identities in, the identities that are missing out.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::ready;
use skep_base_metrics::workqueue::WorkqueueRecorder;
use skep_identity::Labels;
use skep_identity_labels::named_port_labels;
use skep_k8s_client::{Api, Client, ListOptions, Subresource, WriteOptions};
use skep_k8s_controller::{Change, Controller, Reconciler, RequestError, Store, Watches, Work, request};
use skep_k8s_types::selector::FieldSelector;
use skep_k8s_types::slim::{CiliumIdentity, Namespace};
use skep_k8s_types::{ObjectKey, RawObject, Resource};
use skep_operator_gc::HEARTBEAT;
use tokio::time::Instant;

use crate::metrics::IdentityMetrics;
use crate::objects::{self, Pod};
use crate::world::World;

/// Requests at the same time: 40 new label sets a second are kept up with if each takes 200 ms.
const CONCURRENCY: usize = 8;
/// Time until a mark is removed again, unless the watch shows that it is gone; and between two checks of ids that no watch has
/// shown and of label sets without id.
const AGAIN: Duration = Duration::from_secs(60);
/// The ids of a cluster are running out when fewer than one in so many is left.
const FEW: usize = 20;

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Key {
    /// A label set, which needs an identity as long as pods have it.
    Set(Arc<str>),
    /// An identity that was found unused: its mark is removed as long as pods want it.
    Marked(u32),
    /// An identity that exists by an answer, and that the watch has not shown.
    Unseen(u32),
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Set(set) => f.write_str(set),
            Self::Marked(id) => write!(f, "mark of {id}"),
            Self::Unseen(id) => write!(f, "{id}"),
        }
    }
}

/// Result of a request.
#[derive(Debug)]
pub(crate) enum Done {
    Nothing,
    Created(u32, Result<(), RequestError>),
    Unmarked,
    Exists(bool),
}

/// A request to create an identity.
#[derive(Debug)]
struct Creation {
    begun: Instant,
    /// Whether the watch has shown the identity before the answer arrived.
    is_shown: bool,
    /// Whether an earlier request for it got no answer.
    is_repeated: bool,
}

pub(crate) struct Identities {
    client: Arc<dyn Client>,
    metrics: Arc<IdentityMetrics>,
    pods: Store<Pod>,
    namespaces: Store<Namespace>,
    identities: Store<CiliumIdentity>,
    world: World,
    creating: HashMap<u32, Creation>,
    /// Ids of label sets whose request got no answer: they may have been created.
    unanswered: HashMap<Arc<str>, u32>,
    /// Identities that exist by an answer, and that the watch has not shown.
    unseen: BTreeSet<u32>,
    marked: BTreeSet<u32>,
    /// Label sets for which no id is left.
    without_id: BTreeSet<Arc<str>>,
    /// Number of ids that have become free since the last of these waited.
    freed: usize,
    rng: fastrand::Rng,
}

pub(crate) fn controller(
    client: &Arc<dyn Client>,
    metrics: Arc<IdentityMetrics>,
    world: World,
) -> Controller<Identities> {
    let identities = Identities {
        client: client.clone(),
        metrics,
        pods: Store::of_keys(),
        namespaces: Store::of_keys(),
        identities: Store::of_keys(),
        world,
        creating: HashMap::new(),
        unanswered: HashMap::new(),
        unseen: BTreeSet::new(),
        marked: BTreeSet::new(),
        without_id: BTreeSet::new(),
        freed: 0,
        rng: fastrand::Rng::new(),
    };
    // Its queue has metrics of its own.
    Controller::new(identities, WorkqueueRecorder::default())
        .concurrency(CONCURRENCY)
        .resync(AGAIN, |identities| {
            let sets = identities.without_id.iter().cloned().map(Key::Set);
            sets.chain(identities.unseen.iter().copied().map(Key::Unseen))
                .collect()
        })
        .watch_all::<Namespace>(client)
        .watch_all::<CiliumIdentity>(client)
        .watch_all::<Pod>(client)
}

impl Reconciler for Identities {
    type Key = Key;
    type Output = Done;
    type Error = RequestError;
    const KEYS: &'static str = "label sets of pods";
    const FAILED: &'static str = "without identity";

    fn reconcile(&mut self, key: &Key) -> Work<Self> {
        let client = self.client.clone();
        match key {
            Key::Set(set) => match self.begin(set) {
                Some((id, identity)) => async move {
                    let created = request(Api::all(client).create(&identity)).await;
                    Ok(Done::Created(id, created.map(drop)))
                }
                .boxed(),
                None => ready(Ok(Done::Nothing)).boxed(),
            },
            // As agents do: else it is deleted.
            Key::Marked(id) if self.marked.contains(id) && self.world.wants(*id) => {
                remove_mark(client, *id).boxed()
            }
            Key::Unseen(id) if self.unseen.contains(id) => {
                let id = *id;
                async move { Ok(Done::Exists(!read(&*client, id).await?.is_empty())) }.boxed()
            }
            Key::Marked(_) | Key::Unseen(_) => ready(Ok(Done::Nothing)).boxed(),
        }
    }

    fn finished(
        &mut self,
        key: &Key,
        result: Result<Done, RequestError>,
    ) -> Result<Option<Duration>, RequestError> {
        match (key, result?) {
            (Key::Set(set), Done::Created(id, result)) => self.created(set, id, result),
            (_, Done::Unmarked) => Ok(Some(AGAIN)),
            (Key::Unseen(id), Done::Exists(false)) => {
                if self.unseen.remove(id) {
                    self.world.remove_identity(*id);
                    self.release(*id);
                }
                Ok(None)
            }
            _ => Ok(None),
        }
    }

    fn affected_by_results(&mut self) -> Vec<Key> {
        self.changed()
    }

    fn total(&self) -> usize {
        self.world.sets()
    }

    fn faults(&self) -> Vec<String> {
        let (free, size) = (self.world.free(), self.world.size());
        let without = self.without_id.first().map(|set| {
            let count = self.without_id.len();
            format!("no id is left for {count} label sets of pods, such as `{set}`; all {size} are in use")
        });
        let few = || format!("only {free} of {size} ids are left for new identities");
        without
            .or_else(|| (free * FEW < size).then(few))
            .into_iter()
            .collect()
    }

    fn record(&mut self) {
        self.metrics.free_ids.set(self.world.free() as f64);
    }
}

impl Identities {
    /// Keys of what has changed, and of label sets for which there are ids again.
    fn changed(&mut self) -> Vec<Key> {
        let sets = self.world.take_changed();
        let mut keys = Vec::new();
        if !sets.is_empty() {
            let is_changed = |id: &&u32| self.world.wanted_set(**id).is_some_and(|set| sets.contains(set));
            keys.extend(self.marked.iter().filter(is_changed).copied().map(Key::Marked));
        }
        keys.extend(sets.into_iter().map(Key::Set));
        let waiting = std::iter::from_fn(|| self.without_id.pop_first());
        keys.extend(waiting.take(self.freed).map(Key::Set));
        self.freed = 0;
        keys
    }

    /// Chooses the id of an identity that is missing.
    fn begin(&mut self, set: &Arc<str>) -> Option<(u32, CiliumIdentity)> {
        self.without_id.remove(set);
        let unanswered = self.unanswered.get(set).copied();
        let Some(labels) = self.world.missing_labels(set) else {
            // It exists, or its pods are gone.
            if let Some(id) = self.unanswered.remove(set) {
                self.release(id);
            }
            return None;
        };
        let Some(id) = unanswered.or_else(|| self.world.free_id(&mut self.rng)) else {
            self.without_id.insert(set.clone());
            return None;
        };
        let identity = objects::identity(id, labels);
        self.world.reserve(id);
        let begun = Instant::now();
        if let Some(since) = self.world.missing_since(set) {
            self.metrics.sent(begun - since);
        }
        let creation = Creation {
            begun,
            is_shown: false,
            is_repeated: unanswered.is_some(),
        };
        self.creating.insert(id, creation);
        Some((id, identity))
    }

    fn created(
        &mut self,
        set: &Arc<str>,
        id: u32,
        result: Result<(), RequestError>,
    ) -> Result<Option<Duration>, RequestError> {
        self.unanswered.remove(set);
        let Some(creation) = self.creating.remove(&id) else {
            return Ok(None);
        };
        self.metrics.ended(result.is_ok(), creation.begun.elapsed());
        let is_taken = matches!(&result, Err(RequestError::Api(error)) if error.is_already_exists());
        let is_seen = creation.is_shown || self.world.is_used(id);
        match &result {
            Ok(()) if !creation.is_shown => {
                if let Ok(labels) = set.parse() {
                    self.world.set_identity(id, &labels);
                }
                self.unseen.insert(id);
            }
            Err(_) if is_taken && !is_seen => _ = self.unseen.insert(id),
            // The request without answer may arrive yet.
            Err(RequestError::Timeout) if !creation.is_shown => {
                self.unanswered.insert(set.clone(), id);
            }
            _ => self.release(id),
        }
        match result {
            Ok(()) => Ok(None),
            // Another id, at once.
            Err(_) if is_taken && !creation.is_repeated => Ok(Some(Duration::ZERO)),
            // Perhaps it is what the request without answer created, which the watch will show.
            Err(error) => Err(error),
        }
    }

    fn release(&mut self, id: u32) {
        self.world.release(id);
        self.freed += 1;
    }

    /// The watch shows an identity: it knows more than answers do.
    fn shown(&mut self, id: u32) {
        if self.unseen.remove(&id) {
            self.world.release(id);
        }
        if let Some(creation) = self.creating.get_mut(&id) {
            creation.is_shown = true;
        }
    }

    fn set_identity(&mut self, id: u32, identity: &CiliumIdentity) {
        self.shown(id);
        match Labels::from_pairs(identity.security_labels.iter()) {
            Ok(labels) => self.world.set_identity(id, &labels),
            Err(error) => {
                self.world.set_unreadable(id);
                tracing::warn!(id, %error, "Identity with invalid label");
            }
        }
    }
}

impl Watches<Pod> for Identities {
    fn store(&mut self) -> &mut Store<Pod> {
        &mut self.pods
    }

    fn affected(&mut self, change: &Change<Pod>) -> Vec<Key> {
        let key = change.key.clone();
        match change.new.as_ref().filter(|pod| pod.has_identity()) {
            Some(pod) => {
                let ports = named_port_labels(pod.ports());
                let labels = pod.metadata.labels.iter();
                self.world.set_pod(key, labels, pod.service_account(), ports);
            }
            None => self.world.remove_pod(&key),
        }
        self.changed()
    }
}

impl Watches<Namespace> for Identities {
    fn store(&mut self) -> &mut Store<Namespace> {
        &mut self.namespaces
    }

    fn affected(&mut self, change: &Change<Namespace>) -> Vec<Key> {
        let name = &change.key.name;
        match &change.new {
            Some(namespace) => self.world.set_namespace(name, namespace.metadata.labels.iter()),
            None => self.world.remove_namespace(name),
        }
        self.changed()
    }
}

impl Watches<CiliumIdentity> for Identities {
    fn store(&mut self) -> &mut Store<CiliumIdentity> {
        &mut self.identities
    }

    fn affected(&mut self, change: &Change<CiliumIdentity>) -> Vec<Key> {
        // A name that is no number is of no identity.
        let Some(id) = CiliumIdentity::id_of(&change.key.name) else {
            return Vec::new();
        };
        let mut keys = Vec::new();
        self.marked.remove(&id);
        match &change.new {
            Some(identity) => {
                self.set_identity(id, identity);
                if objects::is_marked(identity) {
                    self.marked.insert(id);
                    keys.push(Key::Marked(id));
                }
            }
            None => {
                self.shown(id);
                self.world.remove_identity(id);
                self.freed += 1;
            }
        }
        keys.extend(self.changed());
        keys
    }

    fn invalid(&mut self, key: &ObjectKey) -> Vec<Key> {
        if let Some(id) = CiliumIdentity::id_of(&key.name) {
            self.shown(id);
            self.world.set_unreadable(id);
        }
        self.changed()
    }
}

/// An identity by its name: operators may list and update identities, but neither get nor patch them.
async fn read(client: &dyn Client, id: u32) -> Result<Vec<RawObject>, RequestError> {
    let options = ListOptions {
        fields: FieldSelector::equal("metadata.name", &id.to_string()),
        ..ListOptions::default()
    };
    Ok(request(client.list(&CiliumIdentity::kind(), "", &options))
        .await?
        .items)
}

/// Removes the mark of an identity. Failures are repeated as seldom as successes that the watch does not show.
async fn remove_mark(client: Arc<dyn Client>, id: u32) -> Result<Done, RequestError> {
    let remove = async {
        for object in read(&*client, id).await? {
            let mut object = (*object.to_value()?).clone();
            let annotations = object["metadata"]["annotations"].as_object_mut();
            if annotations.is_some_and(|annotations| annotations.remove(HEARTBEAT).is_some()) {
                let (kind, options) = (CiliumIdentity::kind(), WriteOptions::default());
                request(client.update(&kind, "", Subresource::None, object, &options)).await?;
            }
        }
        Ok(())
    };
    match remove.await {
        Ok(()) => {}
        // Another writer was faster.
        Err(RequestError::Api(error)) if error.is_conflict() || error.is_not_found() => {}
        Err(error) => {
            tracing::warn!(id, error = %hive::error_chain(&error), "Cannot remove deletion mark of identity");
        }
    }
    Ok(Done::Unmarked)
}
