// SPDX-License-Identifier: Apache-2.0

//! The job: watches policies and Secrets, writes the copies.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures::stream::BoxStream;
use futures::{FutureExt, StreamExt};
use hive::Health;
use skep_k8s_client::{Api, Backoff, Client, ObjectEvent, WatchState, WatcherEvent, watcher};
use skep_k8s_crds::policy::{CiliumClusterwideNetworkPolicy, CiliumNetworkPolicy, Rule};
use skep_k8s_types::{ObjectKey, Resource};
use skep_metrics::workqueue::WorkqueueRecorder;
use tokio::time::{Instant, sleep_until};

use crate::world::{PolicyKind, World};
use crate::writer::{CopyError, Secret, Writer};

/// Time until a failed request is repeated: at first, and at most.
const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// Time between two looks at all copies, at most; a fifth less at least.
const RESYNC: Duration = Duration::from_secs(60 * 60);
/// Most faults that health names.
const NAMED: usize = 10;

/// A policy, of whichever kind.
trait Policy: Resource {
    const KIND: PolicyKind;
    fn rules(&self) -> Vec<&Rule>;
}

impl Policy for CiliumNetworkPolicy {
    const KIND: PolicyKind = PolicyKind::Namespaced;

    fn rules(&self) -> Vec<&Rule> {
        self.spec.iter().chain(self.specs.iter().flatten()).collect()
    }
}

impl Policy for CiliumClusterwideNetworkPolicy {
    const KIND: PolicyKind = PolicyKind::Clusterwide;

    fn rules(&self) -> Vec<&Rule> {
        self.spec.iter().chain(self.specs.iter().flatten()).collect()
    }
}

/// Secrets that are not copied.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Uncopied(String);

type Events<T> = BoxStream<'static, WatcherEvent<T>>;

/// A copy that could not be made.
#[derive(Debug)]
struct Failed {
    pause: Duration,
    cause: String,
}

pub(crate) struct Controller {
    writer: Writer,
    health: Health,
    policies: Events<CiliumNetworkPolicy>,
    clusterwide: Events<CiliumClusterwideNetworkPolicy>,
    secrets: Events<Secret>,
    sources: [WatchState; 3],
    world: World,
    /// Copies to look at, and when.
    due: BTreeMap<String, Instant>,
    failed: BTreeMap<String, Failed>,
    queue: WorkqueueRecorder,
    resync: Instant,
}

fn events<T: Resource>(client: &Arc<dyn Client>) -> Events<T> {
    watcher(Arc::new(Api::<T>::all(client.clone())), Backoff::default())
}

fn next_resync() -> Instant {
    Instant::now() + RESYNC.mul_f64(1.0 - 0.2 * fastrand::f64())
}

impl Controller {
    pub(crate) fn new(
        client: Arc<dyn Client>,
        namespace: &str,
        queue: WorkqueueRecorder,
        health: Health,
    ) -> Self {
        Self {
            health,
            policies: events(&client),
            clusterwide: events(&client),
            secrets: events(&client),
            writer: Writer::new(client, namespace),
            sources: Default::default(),
            world: World::new(namespace),
            due: BTreeMap::new(),
            failed: BTreeMap::new(),
            queue,
            resync: next_resync(),
        }
    }

    /// Watches and writes without end.
    pub(crate) async fn run(&mut self) {
        loop {
            self.step().await;
            // One pass for all that has happened.
            while self.step().now_or_never().is_some() {}
            self.queue.set_depth(self.due.len());
            if self.is_listed() {
                self.pass().await;
                self.queue.set_depth(self.due.len());
            }
            self.report();
        }
    }

    fn is_listed(&self) -> bool {
        self.sources.iter().all(|source| source.is_listed())
    }

    /// Takes in what happens next. Nothing is lost if it is dropped.
    async fn step(&mut self) {
        let now = Instant::now();
        let first = self.due.values().copied().filter(|at| *at > now).min();
        let until = first.map_or(self.resync, |first| first.min(self.resync));
        // Watchers never end.
        tokio::select! {
            biased;
            Some(event) = self.policies.next() => {
                self.sources[0].note(&event);
                self.policy(event);
            }
            Some(event) = self.clusterwide.next() => {
                self.sources[1].note(&event);
                self.policy(event);
            }
            Some(event) = self.secrets.next() => {
                self.sources[2].note(&event);
                self.secret(event);
            }
            () = sleep_until(until) => {
                if self.resync <= Instant::now() {
                    self.resync = next_resync();
                    self.mark_all();
                }
            }
        }
    }

    fn mark(&mut self, copies: impl IntoIterator<Item = String>) {
        let now = Instant::now();
        for copy in copies {
            if self.due.insert(copy, now).is_none() {
                self.queue.added();
            }
        }
    }

    fn mark_all(&mut self) {
        let copies: Vec<String> = self.world.copies().map(str::to_owned).collect();
        self.mark(copies);
    }

    fn policy<T: Policy>(&mut self, event: WatcherEvent<T>) {
        let mut changed = BTreeSet::new();
        match event {
            WatcherEvent::Replaced { items, invalid } => {
                let present = items.iter().map(|item| ObjectKey::of(&**item));
                let undecoded = invalid.iter().map(|error| (*error.object).clone());
                let present: BTreeSet<ObjectKey> = present.chain(undecoded).collect();
                let known = self.world.policies(T::KIND);
                let gone: Vec<ObjectKey> = known.filter(|key| !present.contains(key)).cloned().collect();
                for key in gone {
                    changed.extend(self.world.remove_policy(T::KIND, &key));
                }
                for policy in items {
                    changed.extend(
                        self.world
                            .set_policy(T::KIND, ObjectKey::of(&*policy), policy.rules()),
                    );
                }
            }
            WatcherEvent::Object(ObjectEvent::Applied(policy)) => {
                changed = self
                    .world
                    .set_policy(T::KIND, ObjectKey::of(&*policy), policy.rules());
            }
            WatcherEvent::Object(ObjectEvent::Deleted(key, _)) => {
                changed = self.world.remove_policy(T::KIND, &key);
            }
            _ => {}
        }
        self.mark(changed);
    }

    fn secret(&mut self, event: WatcherEvent<Secret>) {
        match event {
            WatcherEvent::Replaced { items, .. } => {
                self.mark_all();
                for secret in items.iter().filter(|secret| secret.is_copy()) {
                    self.changed_secret(&ObjectKey::of(&**secret));
                }
            }
            WatcherEvent::Object(ObjectEvent::Applied(secret)) => {
                self.changed_secret(&ObjectKey::of(&*secret))
            }
            WatcherEvent::Object(ObjectEvent::Deleted(key, _)) => self.changed_secret(&key),
            _ => {}
        }
    }

    fn changed_secret(&mut self, key: &ObjectKey) {
        let copy = match self.world.copy_of(key) {
            None => key.name.to_string(),
            Some(copy) if self.world.original(&copy) == Some(key) => copy,
            Some(_) => return,
        };
        self.mark([copy]);
    }

    /// Writes whatever is due.
    async fn pass(&mut self) {
        let now = Instant::now();
        let due = self.due.iter().filter(|(_, at)| **at <= now);
        let copies: Vec<(String, Instant)> = due.map(|(copy, at)| (copy.clone(), *at)).collect();
        for (copy, at) in copies {
            self.due.remove(&copy);
            let original = self.world.original(&copy).cloned();
            let work = self.queue.taken(at.elapsed());
            let result = self
                .writer
                .reconcile(&copy, original.as_ref(), self.knows_policies())
                .await;
            drop(work);
            let Err(error) = result else {
                self.failed.remove(&copy);
                continue;
            };
            let pause = self.failed.get(&copy).map_or(RETRY.0, |failed| failed.pause * 2);
            let pause = pause.min(RETRY.1);
            let cause = hive::error_chain(&error).to_string();
            // The others would not be answered either.
            let is_answered = error.is_answered();
            // The watch reports when there is one.
            let is_final = matches!(error, CopyError::NoOriginal(_));
            if !is_final {
                tracing::warn!(copy, error = %cause, "Cannot copy a Secret");
                self.due.insert(copy.clone(), Instant::now() + pause);
                self.queue.retried();
            }
            self.failed.insert(copy, Failed { pause, cause });
            if !is_answered {
                return;
            }
        }
    }

    /// Whether what all policies name is known: else no copy is deleted.
    fn knows_policies(&self) -> bool {
        let kinds = [PolicyKind::Namespaced, PolicyKind::Clusterwide];
        kinds.into_iter().zip(&self.sources).all(|(kind, source)| {
            let known: BTreeSet<&ObjectKey> = self.world.policies(kind).collect();
            source.invalid().keys().all(|key| known.contains(key))
        })
    }

    fn report(&mut self) {
        let world = &self.world;
        // Neither wanted nor to be deleted any longer.
        let due = &self.due;
        self.failed
            .retain(|copy, _| world.original(copy).is_some() || due.contains_key(copy));
        let failing = self.sources.iter().find_map(WatchState::failing);
        if let Some(error) = failing {
            let message = "Waiting for the Kubernetes API server";
            self.health.degraded(message, &**error);
            return;
        }
        if !self.is_listed() {
            return;
        }
        let invalid = self.sources.iter().flat_map(|source| source.invalid().values());
        let invalid = invalid.map(ToString::to_string);
        let failed = self
            .failed
            .iter()
            .map(|(copy, failed)| format!("`{copy}`: {}", failed.cause));
        let faults: Vec<String> = failed.chain(self.world.faults()).chain(invalid).collect();
        let total = self.world.copies().count();
        if faults.is_empty() {
            self.health.ok(format!("{total} Secrets"));
            return;
        }
        let message = format!("{} of {total} Secrets are not copied", self.failed.len());
        let named = &faults[..faults.len().min(NAMED)];
        self.health.degraded(message, &Uncopied(named.join("; ")));
    }
}
