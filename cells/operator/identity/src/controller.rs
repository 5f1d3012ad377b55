// SPDX-License-Identifier: Apache-2.0

//! The job: watches pods, namespaces and identities, creates the identities that are missing.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::{BoxStream, FuturesUnordered};
use futures::{FutureExt, StreamExt};
use hive::Health;
use skep_k8s_client::{
    Api, ApiError, Backoff, Client, ListOptions, ObjectEvent, Subresource, WatcherEvent, WriteOptions,
    watcher,
};
use skep_k8s_types::selector::FieldSelector;
use skep_k8s_types::slim::Namespace;
use skep_k8s_types::{DecodeError, ObjectKey, Resource};
use skep_operator_gc::identities::HEARTBEAT;
use tokio::time::{Instant, sleep_until, timeout};

use crate::metrics::IdentityMetrics;
use crate::objects::{Identity, Pod};
use crate::world::World;

/// Most requests at once: 40 new label sets a second are kept up with if each takes 200 ms.
const IN_FLIGHT: usize = 8;
/// Time after which a request counts as failed.
const REQUEST: Duration = Duration::from_secs(10);
/// Time until a failed request is repeated: at first, and at most.
const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// The ids of a cluster are running out when fewer than one in so many are left.
const FEW: usize = 20;

/// What is wrong.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
enum Concern {
    /// Requests are repeated.
    #[error("{count} identities cannot be created, such as that of `{set}`: {cause}")]
    Uncreated {
        count: usize,
        set: Arc<str>,
        cause: String,
    },
    /// Fewer label sets have to be in use: see `labels`.
    #[error("only {free} of {size} ids are left for new identities")]
    FewIds { free: usize, size: usize },
    /// Watches are repeated.
    #[error("cannot watch {kind}: {cause}")]
    Watch { kind: &'static str, cause: String },
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

/// The end of a request.
enum Done {
    Created {
        id: u32,
        set: Arc<str>,
        result: Result<(), CreateError>,
    },
    Unmarked(u32, Result<(), CreateError>),
}

/// What failed, and when it is tried again.
#[derive(Debug)]
struct Failed {
    until: Instant,
    pause: Duration,
    cause: String,
}

type Events<T> = BoxStream<'static, WatcherEvent<T>>;

/// What is known of a watch.
#[derive(Debug, Default)]
struct Source {
    is_listed: bool,
    failing: Option<String>,
}

pub(crate) struct Controller {
    client: Arc<dyn Client>,
    metrics: Arc<IdentityMetrics>,
    health: Health,
    pods: Events<Pod>,
    namespaces: Events<Namespace>,
    identities: Events<Identity>,
    sources: [Source; 3],
    world: World,
    requests: FuturesUnordered<BoxFuture<'static, Done>>,
    /// Label sets whose identities are being created.
    creating: HashSet<Arc<str>>,
    /// Ids of requests, and those that were rejected because they exist: the watch has not shown them yet.
    taken: HashSet<u32>,
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
            creating: HashSet::new(),
            taken: HashSet::new(),
            failed: HashMap::new(),
            marked: BTreeMap::new(),
            reported: None,
            rng: fastrand::Rng::new(),
        }
    }

    /// Watches and creates without end.
    pub(crate) async fn run(&mut self) {
        loop {
            self.step().await;
            // What has happened already is taken in before the next identity is created.
            while self.step().now_or_never().is_some() {}
            if self.sources.iter().all(|source| source.is_listed) {
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
                Done::Created { id, set, result } => self.created(id, set, result),
                Done::Unmarked(id, result) => unmarked(id, result),
            },
            Some(event) = self.namespaces.next() => self.namespace(event),
            Some(event) = self.identities.next() => self.identity(event),
            Some(event) = self.pods.next() => self.pod(event),
            () = due => {}
        }
    }

    fn pod(&mut self, event: WatcherEvent<Pod>) {
        note(&mut self.sources[0], &event);
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
            self.world
                .set_pod(key, pod.metadata.labels.iter(), pod.service_account());
        } else {
            self.world.remove_pod(&key);
        }
    }

    fn namespace(&mut self, event: WatcherEvent<Namespace>) {
        note(&mut self.sources[1], &event);
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

    fn identity(&mut self, event: WatcherEvent<Identity>) {
        note(&mut self.sources[2], &event);
        match event {
            WatcherEvent::Replaced { items, invalid } => {
                let kept = present(&items, &invalid);
                let kept: HashSet<u32> = kept.iter().filter_map(|key| key.name.parse().ok()).collect();
                let gone: Vec<u32> = self.world.identities().filter(|id| !kept.contains(id)).collect();
                gone.iter().for_each(|id| self.world.remove_identity(*id));
                self.marked.retain(|id, _| kept.contains(id));
                items.iter().for_each(|identity| self.set_identity(identity));
            }
            WatcherEvent::Object(ObjectEvent::Applied(identity)) => self.set_identity(&identity),
            WatcherEvent::Object(ObjectEvent::Deleted(key, _)) => {
                if let Ok(id) = key.name.parse() {
                    self.world.remove_identity(id);
                    self.taken.remove(&id);
                    self.marked.remove(&id);
                }
            }
            _ => {}
        }
    }

    fn set_identity(&mut self, identity: &Identity) {
        // A name that is no number is of no identity.
        let Some(id) = identity.id() else { return };
        if identity.is_marked {
            self.marked.entry(id).or_insert_with(Instant::now);
        } else {
            self.marked.remove(&id);
        }
        match identity.labels() {
            Ok(labels) => {
                self.world.set_identity(id, &labels);
                self.taken.remove(&id);
            }
            Err(error) => {
                // The id is in use all the same.
                self.taken.insert(id);
                tracing::warn!(id, %error, "An identity has a label that is none");
            }
        }
    }

    /// Starts requests for what is missing.
    fn create(&mut self) {
        let now = Instant::now();
        while self.requests.len() < IN_FLIGHT {
            let is_due = |set: &&Arc<str>| {
                !self.creating.contains(*set)
                    && self.failed.get(*set).is_none_or(|failed| failed.until <= now)
            };
            let Some(set) = self.world.missing().find(is_due).cloned() else {
                break;
            };
            let Some(id) = self.world.free_id(&mut self.rng, |id| self.taken.contains(&id)) else {
                break;
            };
            let Some(labels) = self.world.missing_labels(&set) else {
                break;
            };
            let object = serde_json::to_value(Identity::new(id, labels));
            self.creating.insert(set.clone());
            self.taken.insert(id);
            let client = self.client.clone();
            let request = async move {
                let kind = Identity::kind();
                let create = async {
                    let mut object = object?;
                    object["apiVersion"] = kind.api_version().into();
                    object["kind"] = kind.kind.as_str().into();
                    let options = WriteOptions::default();
                    let created = timeout(REQUEST, client.create(&kind, "", object, &options)).await;
                    created.map_err(|_| CreateError::Timeout)??;
                    Ok(())
                };
                let result = create.await;
                Done::Created { id, set, result }
            };
            self.requests.push(request.boxed());
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

    fn created(&mut self, id: u32, set: Arc<str>, result: Result<(), CreateError>) {
        self.creating.remove(&set);
        match result {
            Ok(()) => {
                self.metrics.created(true);
                self.failed.remove(&set);
                self.taken.remove(&id);
                if let Ok(labels) = set.parse() {
                    self.world.set_identity(id, &labels);
                }
            }
            // Another number: that one stays taken until the watch shows whose it is.
            Err(CreateError::Api(error)) if error.is_already_exists() => {}
            Err(error) => {
                self.metrics.created(false);
                // Without an answer it may exist.
                if !matches!(error, CreateError::Timeout) {
                    self.taken.remove(&id);
                }
                let pause = self.failed.get(&set).map_or(RETRY.0, |failed| failed.pause * 2);
                let pause = pause.min(RETRY.1);
                let cause = hive::error_chain(&error).to_string();
                tracing::warn!(%set, error = %cause, "Cannot create an identity");
                let failed = Failed {
                    until: Instant::now() + pause,
                    pause,
                    cause,
                };
                self.failed.insert(set, failed);
            }
        }
    }

    fn report(&mut self) {
        // Pods that are gone need nothing any longer.
        let world = &self.world;
        self.failed.retain(|set, _| world.missing_labels(set).is_some());
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
            if let Some(cause) = source.failing.clone() {
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
        (free < size / FEW).then_some(Concern::FewIds { free, size })
    }
}

fn unmarked(id: u32, result: Result<(), CreateError>) {
    match result {
        Ok(()) => {}
        // Somebody else was faster.
        Err(CreateError::Api(error)) if error.is_conflict() || error.is_not_found() => {}
        Err(error) => {
            tracing::warn!(id, error = %hive::error_chain(&error), "Cannot remove the mark of an identity");
        }
    }
}

/// Operators may list and update identities, but neither get nor patch them.
async fn remove_mark(client: &dyn Client, id: u32) -> Result<(), CreateError> {
    let kind = Identity::kind();
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

fn note<T: Resource>(source: &mut Source, event: &WatcherEvent<T>) {
    match event {
        WatcherEvent::Failing(error) => source.failing = Some(hive::error_chain(&**error).to_string()),
        WatcherEvent::Working => source.failing = None,
        WatcherEvent::Replaced { .. } => {
            source.is_listed = true;
            source.failing = None;
        }
        WatcherEvent::Object(ObjectEvent::Invalid(error)) => {
            tracing::warn!(
                kind = %T::kind().kind, object = %error.object, error = %hive::error_chain(error),
                "Cannot decode object"
            );
        }
        WatcherEvent::Object(_) | WatcherEvent::InitPage { .. } | WatcherEvent::InitDone => {}
    }
}

/// The objects of a list, also those that cannot be decoded.
fn present<T: Resource>(items: &[Arc<T>], invalid: &[DecodeError]) -> HashSet<ObjectKey> {
    let items = items.iter().map(|item| ObjectKey::of(&**item));
    items
        .chain(invalid.iter().map(|error| (*error.object).clone()))
        .collect()
}
