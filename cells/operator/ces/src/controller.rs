// SPDX-License-Identifier: Apache-2.0

//! The job: watches endpoints and slices, writes slices.
//!
//! Nothing is written before both lists are complete: an incomplete one would remove endpoints from slices. Each queue has one
//! write at a time.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::{BoxStream, FuturesUnordered, SelectAll, select_all};
use futures::{FutureExt, StreamExt};
use hive::{Cfg, Health, Job, JobCtx, Jobs, SpawnError};
use skep_base_limiter::TokenBucket;
use skep_base_metrics::workqueue::WorkqueueRecorder;
use skep_identity_labels::LabelFilter;
use skep_k8s_client::{Api, ApiError, Backoff, Client, ObjectEvent, WatcherEvent, watcher};
use skep_k8s_crds::endpoint::CiliumEndpointSlice;
use skep_k8s_types::slim::{CiliumEndpoint, CiliumIdentity, CiliumNode, Namespace, Pod, Str};
use skep_k8s_types::{DecodeError, ObjectKey, Resource};
use tokio::time::Instant;

use crate::config::Config;
use crate::metrics::{INSERTED, REMOVED, SliceMetrics};
use crate::objects::entry;
use crate::queue::{Next, Queue};
use crate::slices::{Changes, Slices};
use crate::slim::Watched;
use crate::write::{Outcome, WriteError, write};

/// The annotation of namespaces whose slices are written first.
const PRIORITY: (&str, &str) = ("cilium.io/ces-namespace", "priority");

/// The rate is looked at again after this time, however low it is.
const LONGEST_WAIT: Duration = Duration::from_secs(86_400);

#[derive(Debug, Clone)]
pub(crate) enum Source {
    Endpoints,
    /// Pods, whose identities have the name of the cluster and the labels that count.
    Pods(String, LabelFilter),
}

pub(crate) fn spawn(
    config: Cfg<Config>,
    source: Source,
    client: Arc<dyn Client>,
    metrics: Arc<SliceMetrics>,
    queue: WorkqueueRecorder,
    jobs: &Jobs,
) -> Result<(), SpawnError> {
    jobs.spawn(Job::once("ces", move |cx: JobCtx| {
        let mut controller = Controller::new(
            config.clone(),
            source.clone(),
            client.clone(),
            metrics.clone(),
            Queue::new(queue.clone()),
            cx.health.clone(),
        );
        async move {
            // A leader that is no longer one writes nothing more.
            cx.until_cancelled(controller.run()).await;
        }
    }))
}

enum Event {
    Endpoint(WatcherEvent<CiliumEndpoint>),
    Slice(WatcherEvent<CiliumEndpointSlice>),
    Namespace(WatcherEvent<Namespace>),
    Node(WatcherEvent<CiliumNode>),
    Pod(WatcherEvent<Pod>),
    Identity(WatcherEvent<CiliumIdentity>),
}

struct Written {
    name: Str,
    is_fast: bool,
    changes: Changes,
    outcome: Outcome,
}

/// A write that is under way.
#[derive(Default)]
struct Busy {
    fast: Option<Str>,
    standard: Option<Str>,
}

struct Controller {
    config: Cfg<Config>,
    client: Arc<dyn Client>,
    metrics: Arc<SliceMetrics>,
    health: Health,
    /// What endpoints are made of, if not of CiliumEndpoints.
    watched: Option<Watched>,
    slices: Slices,
    queue: Queue,
    bucket: TokenBucket,
    busy: Busy,
    writes: FuturesUnordered<BoxFuture<'static, Written>>,
    priority: HashSet<Str>,
    nodes: HashSet<Str>,
    has_slices_list: bool,
    has_endpoints_list: bool,
    /// The endpoints of a first list that came before that of slices.
    early: Option<WatcherEvent<CiliumEndpoint>>,
    /// What a watch failed with last, by plural of its kind.
    failing: BTreeMap<Str, Arc<ApiError>>,
    invalid: BTreeMap<(Str, ObjectKey), DecodeError>,
    last_error: Option<(Str, WriteError)>,
}

/// What is not as it should be, for health.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Faults(String);

fn events<T: Resource>(
    client: &Arc<dyn Client>,
    event: fn(WatcherEvent<T>) -> Event,
) -> BoxStream<'static, Event> {
    let api = Api::<T>::all(client.clone());
    watcher(Arc::new(api), Backoff::default()).map(event).boxed()
}

impl Controller {
    fn new(
        config: Cfg<Config>,
        source: Source,
        client: Arc<dyn Client>,
        metrics: Arc<SliceMetrics>,
        queue: Queue,
        health: Health,
    ) -> Self {
        let most = usize::try_from(config.ces_max_ciliumendpoints_per_ces).unwrap_or(usize::MAX);
        let limit = config.ces_rate_limits.for_nodes(0);
        Self {
            slices: Slices::new(most),
            bucket: TokenBucket::new(limit.limit, limit.burst.into()),
            config,
            client,
            metrics,
            health,
            watched: match source {
                Source::Endpoints => None,
                Source::Pods(cluster, filter) => Some(Watched::new(&cluster, filter)),
            },
            queue,
            busy: Busy::default(),
            writes: FuturesUnordered::new(),
            priority: HashSet::new(),
            nodes: HashSet::new(),
            has_slices_list: false,
            has_endpoints_list: false,
            early: None,
            failing: BTreeMap::new(),
            invalid: BTreeMap::new(),
            last_error: None,
        }
    }

    async fn run(&mut self) {
        let client = &self.client;
        let mut streams = vec![
            events(client, Event::Slice),
            events(client, Event::Namespace),
            events(client, Event::Node),
        ];
        if self.watched.is_some() {
            streams.extend([events(client, Event::Pod), events(client, Event::Identity)]);
        } else {
            streams.push(events(client, Event::Endpoint));
        }
        let mut events: SelectAll<BoxStream<'static, Event>> = select_all(streams);
        loop {
            let wake = self.begin_writes();
            self.report();
            let timer = async {
                match wake {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            // Watchers never end.
            tokio::select! {
                Some(event) = events.next() => {
                    self.handle(event);
                    while let Some(Some(event)) = events.next().now_or_never() {
                        self.handle(event);
                    }
                }
                Some(written) = self.writes.next(), if !self.writes.is_empty() => self.ended(written),
                () = timer => {}
            }
            if let Some(watched) = &mut self.watched
                && self.has_slices_list
            {
                self.has_endpoints_list = watched.settle(&mut self.slices);
            }
            for name in self.slices.take_changed() {
                self.queue.add(name);
            }
        }
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Endpoint(event) => self.endpoint(event),
            Event::Slice(event) => self.slice(event),
            Event::Namespace(event) => {
                if let Some(event) = self.common(event) {
                    if let Some(watched) = &mut self.watched {
                        watched.namespace(&event);
                    }
                    let is_priority = |namespace: &Namespace| {
                        namespace.metadata.annotations.get(PRIORITY.0) == Some(PRIORITY.1)
                    };
                    track(&mut self.priority, event, is_priority);
                }
            }
            Event::Node(event) => {
                if let Some(event) = self.common(event) {
                    if let Some(watched) = &mut self.watched {
                        watched.node(&event);
                    }
                    track(&mut self.nodes, event, |_| true);
                    let limit = self.config.ces_rate_limits.for_nodes(self.nodes.len());
                    self.bucket.set(limit.limit, limit.burst.into(), Instant::now());
                }
            }
            Event::Pod(event) => {
                if let (Some(event), Some(watched)) = (self.common(event), &mut self.watched) {
                    watched.pod(event);
                }
            }
            Event::Identity(event) => {
                if let (Some(event), Some(watched)) = (self.common(event), &mut self.watched) {
                    watched.identity(event);
                }
            }
        }
    }

    /// Notes what is wrong; returns events of objects.
    fn common<T: Resource>(&mut self, event: WatcherEvent<T>) -> Option<WatcherEvent<T>> {
        let kind = T::kind().plural;
        match &event {
            WatcherEvent::Failing(error) => drop(self.failing.insert(kind, error.clone())),
            WatcherEvent::Working => drop(self.failing.remove(&kind)),
            WatcherEvent::Replaced { invalid, .. } => {
                self.failing.remove(&kind);
                self.invalid.retain(|(of, _), _| *of != kind);
                for error in invalid {
                    self.invalid
                        .insert((kind.clone(), (*error.object).clone()), error.clone());
                }
                return Some(event);
            }
            WatcherEvent::Object(ObjectEvent::Invalid(error)) => {
                self.invalid
                    .insert((kind, (*error.object).clone()), error.clone());
            }
            WatcherEvent::Object(changed) => {
                self.invalid.remove(&(kind, changed.key()));
                return Some(event);
            }
            WatcherEvent::InitPage { .. } | WatcherEvent::InitDone => {}
        }
        None
    }

    fn endpoint(&mut self, event: WatcherEvent<CiliumEndpoint>) {
        let Some(event) = self.common(event) else { return };
        match event {
            // Endpoints that cannot be read are kept as the slices have them: these come first.
            WatcherEvent::Replaced { .. } if !self.has_slices_list => self.early = Some(event),
            WatcherEvent::Replaced { items, invalid } => {
                let unreadable = invalid.into_iter().map(|error| *error.object).collect();
                let items = items
                    .iter()
                    .map(|object| (ObjectKey::of(&**object), entry(object)));
                self.slices.replace_endpoints(items, &unreadable);
                self.has_endpoints_list = true;
            }
            WatcherEvent::Object(event) => match (&mut self.early, event) {
                // The list is older than this event.
                (Some(WatcherEvent::Replaced { items, .. }), event) => {
                    let key = event.key();
                    items.retain(|object| ObjectKey::of(&**object) != key);
                    if let ObjectEvent::Applied(object) = event {
                        items.push(object);
                    }
                }
                (_, ObjectEvent::Applied(object)) => {
                    if let Some(entry) = entry(&object) {
                        self.slices.upsert(ObjectKey::of(&*object), entry);
                    }
                }
                (_, ObjectEvent::Deleted(key, _)) => self.slices.delete(&key),
                (_, ObjectEvent::Invalid(_)) => {}
            },
            _ => {}
        }
    }

    fn slice(&mut self, event: WatcherEvent<CiliumEndpointSlice>) {
        let Some(event) = self.common(event) else { return };
        match event {
            WatcherEvent::Replaced { mut items, invalid } => {
                let unreadable: Vec<Str> = invalid.into_iter().map(|error| error.object.name).collect();
                items.sort_by(|one, other| one.metadata.name.cmp(&other.metadata.name));
                self.slices
                    .replace_slices(items.iter().map(|object| &**object), &unreadable);
                self.has_slices_list = true;
                if let Some(early) = self.early.take() {
                    self.endpoint(early);
                }
            }
            WatcherEvent::Object(ObjectEvent::Applied(object)) => self.slices.observe(&object),
            WatcherEvent::Object(ObjectEvent::Deleted(key, _)) => self.slices.observe_gone(&key.name),
            _ => {}
        }
    }

    /// Begins the writes that are due; returns when the next one is.
    fn begin_writes(&mut self) -> Option<Instant> {
        if !self.has_slices_list || !self.has_endpoints_list {
            return None;
        }
        let fast = self.begin(true);
        let standard = self.begin(false);
        fast.into_iter().chain(standard).min()
    }

    fn begin(&mut self, is_fast: bool) -> Option<Instant> {
        loop {
            let (busy, other) = match is_fast {
                true => (&self.busy.fast, &self.busy.standard),
                false => (&self.busy.standard, &self.busy.fast),
            };
            if busy.is_some() {
                return None;
            }
            let now = Instant::now();
            let wait = self.bucket.wait(now);
            if !wait.is_zero() {
                return Some(now + wait.min(LONGEST_WAIT));
            }
            let selected = |name: &Str| {
                let namespace = self.slices.namespace(name);
                let has_priority = namespace.is_some_and(|namespace| self.priority.contains(namespace));
                has_priority == is_fast && other.as_ref() != Some(name)
            };
            let (name, since) = match self.queue.next(selected) {
                Next::Nothing => return None,
                Next::At(at) => return Some(at),
                Next::Due(name, since) => (name, since),
            };
            let Some((due, changes)) = self.slices.write(&name) else {
                self.queue.succeeded(&name);
                continue;
            };
            self.bucket.take();
            let queue = if is_fast { "fast" } else { "standard" };
            self.metrics
                .delay
                .with([queue])
                .observe(since.elapsed().as_secs_f64());
            match is_fast {
                true => self.busy.fast = Some(name.clone()),
                false => self.busy.standard = Some(name.clone()),
            }
            let client = self.client.clone();
            self.writes.push(Box::pin(async move {
                let outcome = write(client, &name, due).await;
                Written {
                    name,
                    is_fast,
                    changes,
                    outcome,
                }
            }));
            return None;
        }
    }

    fn ended(&mut self, written: Written) {
        let Written {
            name,
            is_fast,
            changes,
            outcome,
        } = written;
        match is_fast {
            true => self.busy.fast = None,
            false => self.busy.standard = None,
        }
        self.slices.reopen(&name);
        let error = match outcome {
            Outcome::Written(object) => {
                self.slices.observe(&object);
                None
            }
            Outcome::Deleted => {
                self.slices.observe_gone(&name);
                None
            }
            Outcome::Changed(Some(object), error) => {
                self.slices.observe(&object);
                Some(error)
            }
            Outcome::Changed(None, error) => {
                self.slices.observe_gone(&name);
                Some(error)
            }
            Outcome::Failed(error) => Some(error),
        };
        let Some(error) = error else {
            self.metrics.syncs.with(["success", ""]).inc();
            self.metrics.endpoints.observe(changes.endpoints as f64);
            for (opcode, count) in [(INSERTED, changes.inserted), (REMOVED, changes.removed)] {
                if count > 0 {
                    self.metrics.changes.with([opcode]).observe(count as f64);
                }
            }
            self.queue.succeeded(&name);
            return;
        };
        // The retry is later than what a change of the slice would ask for.
        self.slices.forget_change(&name);
        let is_transient = self.queue.retry(name.clone());
        let failure = if is_transient { "transient" } else { "fatal" };
        self.metrics.syncs.with(["fail", failure]).inc();
        tracing::warn!(slice = %name, error = %hive::error_chain(&error), "Cannot write CiliumEndpointSlice");
        self.last_error = Some((name, error));
    }

    fn report(&mut self) {
        let mut faults: Vec<String> = Vec::new();
        let failing = self.failing.iter();
        faults.extend(failing.map(|(kind, error)| format!("{kind}: {}", hive::error_chain(&**error))));
        if self.queue.failing() == 0 {
            self.last_error = None;
        }
        if let Some((name, error)) = &self.last_error {
            let more = self.queue.failing();
            faults.push(format!(
                "{more} slices not written, retrying; `{name}`: {}",
                hive::error_chain(error)
            ));
        }
        faults.extend(self.invalid.values().map(ToString::to_string));
        let (endpoints, slices) = self.slices.len();
        let message = format!("{endpoints} endpoints in {slices} slices");
        if faults.is_empty() {
            self.health.ok(message);
        } else {
            faults.truncate(10);
            self.health.degraded(message, &Faults(faults.join("; ")));
        }
    }
}

/// Keeps the names of the objects that are selected.
fn track<T: Resource>(names: &mut HashSet<Str>, event: WatcherEvent<T>, is_selected: impl Fn(&T) -> bool) {
    match event {
        WatcherEvent::Replaced { items, invalid } => {
            let mut now: HashSet<Str> = invalid
                .into_iter()
                .map(|error| error.object.name)
                .filter(|name| names.contains(name))
                .collect();
            let selected = items.iter().filter(|object| is_selected(object));
            now.extend(selected.map(|object| object.metadata().name.clone()));
            *names = now;
        }
        WatcherEvent::Object(ObjectEvent::Applied(object)) => {
            match is_selected(&object) {
                true => names.insert(object.metadata().name.clone()),
                false => names.remove(&object.metadata().name),
            };
        }
        WatcherEvent::Object(ObjectEvent::Deleted(key, _)) => {
            names.remove(&key.name);
        }
        _ => {}
    }
}
