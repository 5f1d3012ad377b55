// SPDX-License-Identifier: Apache-2.0

//! The job: watches pods, namespaces and identities, creates the identities that are missing.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::{BoxStream, FuturesUnordered};
use futures::{FutureExt, StreamExt};
use hive::Health;
use skep_identity::Labels;
use skep_identity_labels::named_port_labels;
use skep_k8s_client::{
    Api, ApiError, Backoff, Client, ListOptions, ObjectEvent, Subresource, WatchState, WatcherEvent,
    WriteOptions, watcher,
};
use skep_k8s_types::selector::FieldSelector;
use skep_k8s_types::slim::{CiliumIdentity, Namespace};
use skep_k8s_types::{DecodeError, ObjectKey, Resource};
use skep_operator_gc::HEARTBEAT;
use tokio::time::{Instant, sleep_until, timeout};

use crate::metrics::IdentityMetrics;
use crate::objects::{self, Pod};
use crate::world::World;

/// Most requests at once: 40 new label sets a second are kept up with if each takes 200 ms.
const IN_FLIGHT: usize = 8;
/// Time after which a request counts as failed.
const REQUEST: Duration = Duration::from_secs(10);
/// Time until a failed request is repeated: at first, and at most.
const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// How much later than a list the watch may show an identity that was created while the list was made.
const SHOWN: Duration = Duration::from_secs(10);
/// The ids of a cluster are running out when fewer than one in so many is left.
const FEW: usize = 20;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
enum Concern {
    #[error("{count} identities cannot be created, such as that of `{set}`: {cause}")]
    Uncreated {
        count: usize,
        set: Arc<str>,
        cause: String,
    },
    /// Fewer label sets have to be in use: see `labels`.
    #[error("no id is left for {count} label sets of pods, such as `{set}`; all {size} are in use")]
    NoIds {
        count: usize,
        set: Arc<str>,
        size: usize,
    },
    #[error("only {free} of {size} ids are left for new identities")]
    FewIds { free: usize, size: usize },
    #[error("cannot watch {kind}: {cause}")]
    Watch { kind: &'static str, cause: String },
    #[error("{count} objects cannot be decoded, such as {error}")]
    Undecodable { count: usize, error: DecodeError },
}

#[derive(Debug, thiserror::Error)]
enum CreateError {
    #[error(transparent)]
    Api(#[from] ApiError),
    #[error("no answer from the API server")]
    Timeout,
    #[error("cannot write the object")]
    Encode(#[from] serde_json::Error),
}

impl CreateError {
    fn is_already_exists(&self) -> bool {
        matches!(self, Self::Api(error) if error.is_already_exists())
    }
}

enum Done {
    Created(u32, Result<(), CreateError>),
    Unmarked(u32, Result<(), CreateError>),
}

/// A request to create an identity.
#[derive(Debug)]
struct Creation {
    set: Arc<str>,
    begun: Instant,
    /// Whether the watch has shown the identity before the answer arrived.
    is_shown: bool,
    /// Whether an earlier request for it got no answer.
    is_repeated: bool,
}

/// What failed, and when it is tried again.
#[derive(Debug)]
struct Failed {
    until: Instant,
    pause: Duration,
    cause: String,
    /// The id of a request without answer: it may have been created.
    unanswered: Option<u32>,
}

type Events<T> = BoxStream<'static, WatcherEvent<T>>;

pub(crate) struct Controller {
    client: Arc<dyn Client>,
    metrics: Arc<IdentityMetrics>,
    health: Health,
    pods: Events<Pod>,
    namespaces: Events<Namespace>,
    identities: Events<CiliumIdentity>,
    sources: [WatchState; 3],
    world: World,
    requests: FuturesUnordered<BoxFuture<'static, Done>>,
    creating: HashMap<u32, Creation>,
    /// Identities that exist by an answer, and that the watch has not shown yet. Those that a list did not show either are
    /// gone at the time here.
    unseen: HashMap<u32, Option<Instant>>,
    failed: HashMap<Arc<str>, Failed>,
    /// Identities that were found unused, and when their mark is removed, if pods want them.
    marked: BTreeMap<u32, Instant>,
    reported: Option<Option<Concern>>,
    rng: fastrand::Rng,
}

fn events<T: Resource>(client: &Arc<dyn Client>) -> Events<T> {
    watcher(Arc::new(Api::<T>::all(client.clone())), Backoff::default())
}

impl Controller {
    pub(crate) fn new(
        client: Arc<dyn Client>,
        world: World,
        metrics: Arc<IdentityMetrics>,
        health: Health,
    ) -> Self {
        Self {
            pods: events(&client),
            namespaces: events(&client),
            identities: events(&client),
            client,
            metrics,
            health,
            sources: Default::default(),
            world,
            requests: FuturesUnordered::new(),
            creating: HashMap::new(),
            unseen: HashMap::new(),
            failed: HashMap::new(),
            marked: BTreeMap::new(),
            reported: None,
            rng: fastrand::Rng::new(),
        }
    }

    pub(crate) async fn run(&mut self) {
        loop {
            self.step().await;
            // What has happened already is taken in before the next identity is created.
            while self.step().now_or_never().is_some() {}
            self.forget_unseen();
            if self.sources.iter().all(WatchState::is_listed) {
                self.create();
                self.unmark();
            }
            self.report();
        }
    }

    /// Takes in what happens next. Nothing is lost if it is dropped.
    async fn step(&mut self) {
        let now = Instant::now();
        let marked = self.marked.iter().filter(|(id, _)| self.world.wants(**id));
        let all = self.failed.values().map(|failed| failed.until);
        let all = all.chain(marked.map(|(_, until)| *until));
        let all = all.chain(self.unseen.values().copied().flatten());
        let first = all.filter(|until| *until > now).min();
        let due = async {
            match first {
                Some(until) => sleep_until(until).await,
                None => std::future::pending().await,
            }
        };
        // Watchers never end.
        tokio::select! {
            biased;
            Some(done) = self.requests.next(), if !self.requests.is_empty() => match done {
                Done::Created(id, result) => self.created(id, result),
                Done::Unmarked(id, result) => unmarked(id, result),
            },
            Some(event) = self.namespaces.next() => self.namespace(event),
            Some(event) = self.identities.next() => self.identity(event),
            Some(event) = self.pods.next() => self.pod(event),
            () = due => {}
        }
    }

    fn pod(&mut self, event: WatcherEvent<Pod>) {
        self.sources[0].note(&event);
        match event {
            WatcherEvent::Replaced { items, invalid } => {
                let kept = present(&items, &invalid);
                let gone: Vec<ObjectKey> = self
                    .world
                    .pods()
                    .filter(|key| !kept.contains(key))
                    .cloned()
                    .collect();
                gone.iter().for_each(|key| self.world.remove_pod(key));
                items.iter().for_each(|pod| self.set_pod(pod));
            }
            WatcherEvent::Object(ObjectEvent::Applied(pod)) => self.set_pod(&pod),
            WatcherEvent::Object(ObjectEvent::Deleted(key, _)) => self.world.remove_pod(&key),
            _ => {}
        }
    }

    fn set_pod(&mut self, pod: &Pod) {
        let key = ObjectKey::of(pod);
        if pod.has_identity() {
            let ports = named_port_labels(pod.ports());
            self.world
                .set_pod(key, pod.metadata.labels.iter(), pod.service_account(), ports);
        } else {
            self.world.remove_pod(&key);
        }
    }

    fn namespace(&mut self, event: WatcherEvent<Namespace>) {
        self.sources[1].note(&event);
        match event {
            WatcherEvent::Replaced { items, invalid } => {
                let kept = present(&items, &invalid);
                let kept: HashSet<&str> = kept.iter().map(|key| &*key.name).collect();
                let names = self.world.namespaces().filter(|name| !kept.contains(name));
                let gone: Vec<String> = names.map(str::to_owned).collect();
                gone.iter().for_each(|name| self.world.remove_namespace(name));
                items.iter().for_each(|namespace| self.set_namespace(namespace));
            }
            WatcherEvent::Object(ObjectEvent::Applied(namespace)) => self.set_namespace(&namespace),
            WatcherEvent::Object(ObjectEvent::Deleted(key, _)) => self.world.remove_namespace(&key.name),
            _ => {}
        }
    }

    fn set_namespace(&mut self, namespace: &Namespace) {
        let metadata = &namespace.metadata;
        self.world.set_namespace(&metadata.name, metadata.labels.iter());
    }

    fn identity(&mut self, event: WatcherEvent<CiliumIdentity>) {
        self.sources[2].note(&event);
        match event {
            WatcherEvent::Replaced { items, invalid } => {
                let kept = present(&items, &invalid);
                let kept: HashSet<u32> = kept
                    .iter()
                    .filter_map(|key| CiliumIdentity::id_of(&key.name))
                    .collect();
                for (_, until) in self.unseen.iter_mut().filter(|(id, _)| !kept.contains(id)) {
                    until.get_or_insert_with(|| Instant::now() + SHOWN);
                }
                let is_gone = |id: &u32| !kept.contains(id) && !self.unseen.contains_key(id);
                let gone: Vec<u32> = self.world.identities().filter(is_gone).collect();
                gone.iter().for_each(|id| self.world.remove_identity(*id));
                invalid
                    .iter()
                    .for_each(|error| self.set_unreadable(&error.object));
                self.marked.retain(|id, _| kept.contains(id));
                items.iter().for_each(|identity| self.set_identity(identity));
            }
            WatcherEvent::Object(ObjectEvent::Applied(identity)) => self.set_identity(&identity),
            WatcherEvent::Object(ObjectEvent::Deleted(key, _)) => {
                if let Some(id) = CiliumIdentity::id_of(&key.name) {
                    self.shown(id);
                    self.world.remove_identity(id);
                    self.marked.remove(&id);
                }
            }
            WatcherEvent::Object(ObjectEvent::Invalid(error)) => self.set_unreadable(&error.object),
            _ => {}
        }
    }

    /// The watch shows an identity: it knows more than answers do.
    fn shown(&mut self, id: u32) {
        if self.unseen.remove(&id).is_some() {
            self.world.release(id);
        }
        if let Some(creation) = self.creating.get_mut(&id) {
            creation.is_shown = true;
        }
    }

    fn set_unreadable(&mut self, key: &ObjectKey) {
        if let Some(id) = CiliumIdentity::id_of(&key.name) {
            self.shown(id);
            self.world.set_unreadable(id);
        }
    }

    /// Neither the list nor what the watch showed after it had these identities.
    fn forget_unseen(&mut self) {
        let now = Instant::now();
        let is_over = |until: Option<Instant>| until.is_some_and(|until| until <= now);
        let ids: Vec<u32> = self
            .unseen
            .iter()
            .filter(|(_, until)| is_over(**until))
            .map(|(id, _)| *id)
            .collect();
        for id in ids {
            self.unseen.remove(&id);
            self.world.release(id);
            self.world.remove_identity(id);
        }
    }

    fn set_identity(&mut self, identity: &CiliumIdentity) {
        // A name that is no number is of no identity.
        let Some(id) = identity.id() else { return };
        if objects::is_marked(identity) {
            self.marked.entry(id).or_insert_with(Instant::now);
        } else {
            self.marked.remove(&id);
        }
        self.shown(id);
        match Labels::from_pairs(identity.security_labels.iter()) {
            Ok(labels) => self.world.set_identity(id, &labels),
            Err(error) => {
                self.world.set_unreadable(id);
                tracing::warn!(id, %error, "Identity with invalid label");
            }
        }
    }

    /// Label sets whose identities are being created.
    fn busy(&self) -> HashSet<&Arc<str>> {
        self.creating.values().map(|creation| &creation.set).collect()
    }

    /// Starts requests for what is missing.
    fn create(&mut self) {
        let now = Instant::now();
        let busy = self.busy();
        let is_due = |set: &&Arc<str>| {
            !busy.contains(*set) && self.failed.get(*set).is_none_or(|failed| failed.until <= now)
        };
        let room = IN_FLIGHT.saturating_sub(self.requests.len());
        let due: Vec<Arc<str>> = self.world.missing().filter(is_due).take(room).cloned().collect();
        for set in due {
            let unanswered = self.failed.get(&set).and_then(|failed| failed.unanswered);
            let free = || self.world.free_id(&mut self.rng);
            let Some(id) = unanswered.or_else(free) else {
                continue;
            };
            let Some(labels) = self.world.missing_labels(&set) else {
                continue;
            };
            self.requests
                .push(create(self.client.clone(), id, objects::identity(id, labels)).boxed());
            self.world.reserve(id);
            if let Some(since) = self.world.missing_since(&set) {
                self.metrics.sent(now - since);
            }
            let creation = Creation {
                set,
                begun: now,
                is_shown: false,
                is_repeated: unanswered.is_some(),
            };
            self.creating.insert(id, creation);
        }
    }

    /// Removes the mark of identities that pods want, as agents do: else they are deleted.
    fn unmark(&mut self) {
        let now = Instant::now();
        for (id, until) in &mut self.marked {
            if *until > now || self.requests.len() >= IN_FLIGHT || !self.world.wants(*id) {
                continue;
            }
            // Unless the watch shows that it is gone.
            *until = now + RETRY.1;
            let (id, client) = (*id, self.client.clone());
            let request = async move {
                let removed = timeout(REQUEST, remove_mark(&*client, id)).await;
                let result = removed.unwrap_or(Err(CreateError::Timeout));
                Done::Unmarked(id, result)
            };
            self.requests.push(request.boxed());
        }
    }

    fn created(&mut self, id: u32, result: Result<(), CreateError>) {
        let Some(creation) = self.creating.remove(&id) else {
            return;
        };
        let Creation {
            set,
            begun,
            is_shown,
            is_repeated,
        } = creation;
        let old = self.failed.remove(&set);
        self.metrics.ended(result.is_ok(), begun.elapsed());
        match &result {
            Ok(()) if !is_shown => {
                if let Ok(labels) = set.parse() {
                    self.world.set_identity(id, &labels);
                }
                self.unseen.insert(id, None);
            }
            Err(error) if error.is_already_exists() && !is_shown && !self.world.is_used(id) => {
                self.unseen.insert(id, None);
            }
            // The request without answer may arrive yet.
            Err(CreateError::Timeout) if !is_shown => {}
            _ => self.world.release(id),
        }
        let error = match result {
            Ok(()) => return,
            // Another id, at once.
            Err(error) if error.is_already_exists() && !is_repeated => return,
            // Perhaps it is what the request without answer created, which the watch will show.
            Err(error) => error,
        };
        let pause = old.map_or(RETRY.0, |failed| failed.pause * 2).min(RETRY.1);
        let cause = hive::error_chain(&error).to_string();
        tracing::warn!(%set, error = %cause, "Cannot create identity");
        let failed = Failed {
            until: Instant::now() + pause,
            pause,
            cause,
            unanswered: (matches!(error, CreateError::Timeout) && !is_shown).then_some(id),
        };
        self.failed.insert(set, failed);
    }

    fn report(&mut self) {
        // Pods that are gone need nothing any longer.
        let world = &mut self.world;
        self.failed.retain(|set, failed| {
            let is_missing = world.missing_labels(set).is_some();
            if let (false, Some(id)) = (is_missing, failed.unanswered) {
                world.release(id);
            }
            is_missing
        });
        let (free, size) = (self.world.free(), self.world.size());
        self.metrics.free_ids.set(free as f64);
        let concern = self.concern(free, size);
        if self.reported.as_ref() == Some(&concern) {
            return;
        }
        match &concern {
            Some(concern) => self.health.degraded("Identities", concern),
            None => self
                .health
                .ok("Identities of all pods exist or are being created"),
        }
        self.reported = Some(concern);
    }

    fn concern(&self, free: usize, size: usize) -> Option<Concern> {
        let kinds = ["pods", "namespaces", "identities"];
        for (kind, source) in kinds.into_iter().zip(&self.sources) {
            if let Some(error) = source.failing() {
                let cause = hive::error_chain(&**error).to_string();
                return Some(Concern::Watch { kind, cause });
            }
        }
        let sets: BTreeSet<&Arc<str>> = self.failed.keys().collect();
        if let Some(set) = sets.first() {
            return Some(Concern::Uncreated {
                count: sets.len(),
                set: (*set).clone(),
                cause: self.failed[*set].cause.clone(),
            });
        }
        let busy = self.busy();
        let mut waiting = self.world.missing().filter(|set| !busy.contains(set));
        if let (0, Some(set)) = (free, waiting.next()) {
            let (set, count) = (set.clone(), 1 + waiting.count());
            return Some(Concern::NoIds { count, set, size });
        }
        let mut undecodable = self.sources.iter().flat_map(|source| source.invalid().values());
        if let Some(error) = undecodable.next().cloned() {
            let count = 1 + undecodable.count();
            return Some(Concern::Undecodable { count, error });
        }
        (free * FEW < size).then_some(Concern::FewIds { free, size })
    }
}

async fn create(client: Arc<dyn Client>, id: u32, identity: CiliumIdentity) -> Done {
    let kind = CiliumIdentity::kind();
    let create = async {
        let mut object = serde_json::to_value(identity)?;
        object["apiVersion"] = kind.api_version().into();
        object["kind"] = kind.kind.as_str().into();
        let options = WriteOptions::default();
        let created = timeout(REQUEST, client.create(&kind, "", object, &options)).await;
        created.map_err(|_| CreateError::Timeout)??;
        Ok(())
    };
    let result = create.await;
    Done::Created(id, result)
}

fn unmarked(id: u32, result: Result<(), CreateError>) {
    match result {
        Ok(()) => {}
        // Another writer was faster.
        Err(CreateError::Api(error)) if error.is_conflict() || error.is_not_found() => {}
        Err(error) => {
            tracing::warn!(id, error = %hive::error_chain(&error), "Cannot remove deletion mark of identity");
        }
    }
}

/// Operators may list and update identities, but neither get nor patch them.
async fn remove_mark(client: &dyn Client, id: u32) -> Result<(), CreateError> {
    let kind = CiliumIdentity::kind();
    let options = ListOptions {
        fields: FieldSelector::equal("metadata.name", &id.to_string()),
        ..ListOptions::default()
    };
    let page = client.list(&kind, "", &options).await?;
    for object in page.items {
        let mut object = (*object.to_value().map_err(ApiError::from)?).clone();
        let annotations = object["metadata"]["annotations"].as_object_mut();
        if annotations.is_some_and(|annotations| annotations.remove(HEARTBEAT).is_some()) {
            let options = WriteOptions::default();
            client
                .update(&kind, "", Subresource::None, object, &options)
                .await?;
        }
    }
    Ok(())
}

/// The objects of a list, also those that cannot be decoded.
fn present<T: Resource>(items: &[Arc<T>], invalid: &[DecodeError]) -> HashSet<ObjectKey> {
    let items = items.iter().map(|item| ObjectKey::of(&**item));
    items
        .chain(invalid.iter().map(|error| (*error.object).clone()))
        .collect()
}
