// SPDX-License-Identifier: Apache-2.0

//! CiliumNodes → what is allocated to them in their specs, errors in their statuses.
//!
//! Nothing is allocated until all nodes are listed and restored. A write reads the node, assigns by what was read and
//! writes it back with its resource version: a conflict means to assign again. What waits to be written is reserved.
//! What is allocated is up to a [`NodeAllocator`].

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use hive::Health;
use serde_json::{Value, json};
use skep_k8s_client::{
    Api, ApiError, Backoff, Client, ObjectEvent, Subresource, WatcherEvent, WriteOptions, watcher,
};
use skep_k8s_crds::node::CiliumNode;
use skep_k8s_types::{RawObject, Resource};
use tokio::time::{Instant, sleep_until, timeout};

use crate::allocator::OccupyError;
use crate::recorder::{IpamRecorder, PoolUsage, Unrecorded};

/// Nodes with this annotation set to `true` are ignored.
const IGNORE: &str = "ipam.cilium.io/ignore";
/// Shortest time between two rounds of writes.
const INTERVAL: Duration = Duration::from_secs(1);
/// Time until a failed write is retried.
const RETRY: Duration = Duration::from_secs(15);
/// Time after which a request counts as failed.
const REQUEST: Duration = Duration::from_secs(10);
const NAMED: usize = 10;

/// What the spec of a node is to contain.
pub(crate) struct Assigned<S> {
    pub(crate) spec: S,
    /// Networks of the spec that another node holds. They are not in `spec`.
    pub(crate) duplicates: Vec<OccupyError>,
    pub(crate) error: Option<String>,
}

/// Allocates networks to nodes.
///
/// A node is restored before anything is allocated. What is assigned stays reserved for the node until the node is removed
/// or its spec says otherwise.
pub(crate) trait NodeAllocator: Send {
    /// The part of a node's spec that it writes.
    type Spec: PartialEq + Send + Sync;

    /// Waits until anything but a node has changed: then all nodes are assigned again.
    fn changed(&mut self) -> impl Future<Output = ()> + Send;
    /// Whether everything but the nodes is known.
    fn is_ready(&self) -> bool;
    /// Why it is not up to date.
    fn failing(&self) -> Option<&str>;
    /// What else is wrong, for health.
    fn faults(&self) -> Vec<String>;
    /// Whether the pools, or what nodes hold of them, have changed since the last call.
    fn take_changed(&mut self) -> bool;
    /// How much of each pool is in use. It looks at every prefix in use.
    fn usage(&self) -> Vec<PoolUsage>;
    /// Names of the nodes that hold networks.
    fn holders(&self) -> Vec<String>;
    fn restore(&mut self, node: &CiliumNode);
    /// Assigns what a node asks for.
    fn assign(&mut self, node: &CiliumNode) -> Assigned<Self::Spec>;
    /// Releases everything that a node holds.
    fn remove(&mut self, node: &str);
    /// Whether anything was released since the last call.
    fn take_released(&mut self) -> bool;
    /// What the spec of a node contains.
    fn spec(node: &CiliumNode) -> Self::Spec;
    /// Changes a node to have a spec.
    fn set_spec(object: &mut Value, spec: &Self::Spec);
    fn text(spec: &Self::Spec) -> String;
}

/// Nodes that do not have their networks.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Unassigned(String);

#[derive(Debug, thiserror::Error)]
enum WriteError {
    #[error(transparent)]
    Api(#[from] ApiError),
    #[error("no answer from the API server")]
    Timeout,
}

/// What is known of a node.
struct Known {
    node: Arc<CiliumNode>,
    error: Option<String>,
}

/// Keeps the networks of all nodes.
pub(crate) struct NodePool<A> {
    client: Arc<dyn Client>,
    pool: A,
    health: Health,
    recorder: Arc<dyn IpamRecorder>,
    known: BTreeMap<String, Known>,
    /// Nodes to look at, and when.
    due: BTreeMap<String, Instant>,
    /// Nodes that cannot be decoded, so that what they hold is not known.
    unreadable: BTreeSet<String>,
    is_listed: bool,
    /// Whether the usage of pools was recorded since the start.
    is_usage_recorded: bool,
    next_round: Instant,
    failing: Option<String>,
}

fn status_error(node: &CiliumNode) -> &str {
    let ipam = node.status.as_ref().and_then(|status| status.ipam.as_ref());
    let operator = ipam.and_then(|ipam| ipam.operator_status.as_ref());
    operator
        .and_then(|operator| operator.error.as_deref())
        .unwrap_or_default()
}

fn is_ignored(node: &CiliumNode) -> bool {
    node.metadata.annotations.get(IGNORE) == Some("true")
}

fn version(node: &CiliumNode) -> Option<u64> {
    node.metadata.resource_version.parse().ok()
}

impl<A: NodeAllocator> NodePool<A> {
    pub(crate) fn new(client: Arc<dyn Client>, pool: A, health: Health) -> Self {
        Self {
            client,
            pool,
            health,
            recorder: Arc::new(Unrecorded),
            known: BTreeMap::new(),
            due: BTreeMap::new(),
            unreadable: BTreeSet::new(),
            is_listed: false,
            is_usage_recorded: false,
            next_round: Instant::now(),
            failing: None,
        }
    }

    pub(crate) fn recorded_by(mut self, recorder: Arc<dyn IpamRecorder>) -> Self {
        self.recorder = recorder;
        self
    }

    pub(crate) async fn run(&mut self) {
        let source = Arc::new(Api::<CiliumNode>::all(self.client.clone()));
        let mut events = watcher(source, Backoff::default());
        loop {
            let round = self.round_at();
            let wait = async {
                match round {
                    Some(at) => sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                event = events.next() => match event {
                    Some(event) => self.apply(event),
                    None => return,
                },
                () = self.pool.changed() => self.assign_all(),
                () = wait => self.round().await,
            }
            self.wake();
            self.report();
            self.record();
        }
    }

    fn round_at(&self) -> Option<Instant> {
        if !self.is_listed || !self.unreadable.is_empty() || !self.pool.is_ready() {
            return None;
        }
        let first = self.due.values().min()?;
        Some((*first).max(self.next_round))
    }

    fn apply(&mut self, event: WatcherEvent<CiliumNode>) {
        match event {
            WatcherEvent::Replaced { items, invalid } => {
                self.failing = None;
                let present: BTreeSet<String> = items
                    .iter()
                    .map(|node| node.metadata.name.to_string())
                    .chain(invalid.iter().map(|error| error.object.name.to_string()))
                    .collect();
                let holding = self.pool.holders();
                let gone = self
                    .known
                    .keys()
                    .cloned()
                    .chain(holding)
                    .chain(self.unreadable.iter().cloned());
                let gone: BTreeSet<String> = gone.filter(|name| !present.contains(name)).collect();
                for name in gone {
                    self.remove(&name);
                }
                let mut items = items;
                // Of two nodes with the same network the first by name keeps it.
                items.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
                for node in items {
                    self.upsert(node);
                }
                for error in invalid {
                    self.invalid(&error.object.name, &error);
                }
                self.is_listed = true;
            }
            WatcherEvent::Object(ObjectEvent::Applied(node)) => self.upsert(node),
            WatcherEvent::Object(ObjectEvent::Deleted(key, _)) => self.remove(&key.name),
            WatcherEvent::Object(ObjectEvent::Invalid(error)) => {
                let name = error.object.name.clone();
                self.invalid(&name, &error);
            }
            WatcherEvent::Failing(error) => {
                let text = hive::error_chain(&*error);
                tracing::warn!(error = %text, "Cannot watch CiliumNodes");
                self.failing = Some(text);
            }
            WatcherEvent::Working => self.failing = None,
            WatcherEvent::InitPage { .. } | WatcherEvent::InitDone => {}
        }
    }

    /// What the node held stays in use. If that is not known, nothing is allocated until it is.
    fn invalid(&mut self, name: &str, error: &(dyn std::error::Error + 'static)) {
        tracing::warn!(node = name, error = %hive::error_chain(error), "Cannot decode CiliumNode");
        if !self.known.contains_key(name) {
            self.unreadable.insert(name.to_owned());
        }
    }

    fn upsert(&mut self, node: Arc<CiliumNode>) {
        let name = node.metadata.name.to_string();
        // An event older than the last write is ignored: by it, a written pod CIDR would count as removed.
        let written = self.known.get(&name).map(|known| &known.node);
        if let Some(written) = written
            && written.metadata.uid == node.metadata.uid
            && version(&node) < version(written)
        {
            return;
        }
        self.unreadable.remove(&name);
        self.pool.restore(&node);
        let error = self.known.remove(&name).and_then(|known| known.error);
        self.known.insert(name.clone(), Known { node, error });
        self.queue(name, Instant::now());
    }

    fn queue(&mut self, name: String, at: Instant) {
        self.recorder.queued();
        self.due.insert(name, at);
    }

    fn queue_all(&mut self, names: Vec<String>) {
        let now = Instant::now();
        for name in names {
            self.queue(name, now);
        }
    }

    fn remove(&mut self, name: &str) {
        self.pool.remove(name);
        self.known.remove(name);
        self.due.remove(name);
        self.unreadable.remove(name);
    }

    fn assign_all(&mut self) {
        self.queue_all(self.known.keys().cloned().collect());
    }

    /// What was released may be what another node waits for.
    fn wake(&mut self) {
        if !self.pool.take_released() {
            return;
        }
        let waiting = self.known.iter().filter(|(_, known)| known.error.is_some());
        self.queue_all(waiting.map(|(name, _)| name.clone()).collect());
    }

    /// Assigns and writes whatever is due. The first request without an answer ends the round.
    async fn round(&mut self) {
        let now = Instant::now();
        let due = self.due.iter().filter(|(_, at)| **at <= now);
        let first = due.clone().map(|(_, at)| *at).min().unwrap_or(now);
        let names: Vec<String> = due.map(|(name, _)| name.clone()).collect();
        let nodes = names.len();
        for name in names {
            match self.bring_up_to_date(&name).await {
                Ok(()) => {
                    self.due.remove(&name);
                }
                Err(WriteError::Api(error)) if error.is_not_found() => {
                    // Its deletion is on the way.
                    self.due.remove(&name);
                }
                Err(WriteError::Api(error)) if error.is_conflict() => {
                    self.queue(name, Instant::now() + INTERVAL);
                }
                Err(error) => {
                    let text = hive::error_chain(&error);
                    tracing::warn!(node = name, error = %text, "Cannot write CiliumNode");
                    let is_status = matches!(&error, WriteError::Api(error) if error.status().is_some());
                    if let Some(known) = self.known.get_mut(&name) {
                        known.error = Some(text);
                    }
                    self.queue(name, Instant::now() + RETRY);
                    if !is_status {
                        let later = Instant::now() + RETRY;
                        self.due
                            .values_mut()
                            .filter(|at| **at <= now)
                            .for_each(|at| *at = later);
                        break;
                    }
                }
            }
        }
        self.recorder.round(nodes, now - first, now.elapsed());
        self.next_round = Instant::now() + INTERVAL;
    }

    async fn bring_up_to_date(&mut self, name: &str) -> Result<(), WriteError> {
        let Some(known) = self.known.get(name) else {
            return Ok(());
        };
        let node = known.node.clone();
        if is_ignored(&node) || self.is_up_to_date(name, &node) {
            return Ok(());
        }
        let raw = read(&*self.client, name).await?;
        let mut node: Arc<CiliumNode> = raw.clone().decode().map_err(ApiError::from)?;
        if is_ignored(&node) {
            return Ok(());
        }
        let assigned = self.pool.assign(&node);
        for duplicate in &assigned.duplicates {
            tracing::warn!(node = name, error = %duplicate, "Duplicate CIDR, will be released from this node");
        }
        let mut object = (*raw.to_value().map_err(ApiError::from)?).clone();
        if assigned.spec != A::spec(&node) {
            A::set_spec(&mut object, &assigned.spec);
            let stored = write(&*self.client, Subresource::None, object).await?;
            node = stored.clone().decode().map_err(ApiError::from)?;
            object = (*stored.to_value().map_err(ApiError::from)?).clone();
            let pod_cidrs = A::text(&assigned.spec);
            tracing::info!(node = name, pod_cidrs, "Assigned pod CIDRs");
            self.remember(name, &node, assigned.error.as_deref());
        }
        if assigned.error.as_deref().unwrap_or_default() != status_error(&node) {
            set_error(&mut object, assigned.error.as_deref());
            let stored = write(&*self.client, Subresource::Status, object).await?;
            node = stored.decode().map_err(ApiError::from)?;
        }
        self.remember(name, &node, assigned.error.as_deref());
        Ok(())
    }

    fn is_up_to_date(&mut self, name: &str, node: &CiliumNode) -> bool {
        let assigned = self.pool.assign(node);
        let is_same = assigned.spec == A::spec(node)
            && assigned.error.as_deref().unwrap_or_default() == status_error(node);
        if is_same && let Some(known) = self.known.get_mut(name) {
            known.error = assigned.error;
        }
        is_same
    }

    /// Restores what was written, so that it counts as removed once it is missing.
    fn remember(&mut self, name: &str, node: &Arc<CiliumNode>, error: Option<&str>) {
        self.pool.restore(node);
        if let Some(known) = self.known.get_mut(name) {
            known.node = node.clone();
            known.error = error.map(str::to_owned);
        }
    }

    fn record(&mut self) {
        if !self.is_listed || !self.pool.is_ready() {
            return;
        }
        let failed = self.known.values().filter(|known| known.error.is_some());
        let in_deficit = self.unreadable.len() + failed.count();
        self.recorder
            .nodes(self.known.len() + self.unreadable.len(), in_deficit);
        // There are many events of nodes, and few of them change a pool.
        if self.pool.take_changed() | !std::mem::replace(&mut self.is_usage_recorded, true) {
            self.recorder.pools(&self.pool.usage());
        }
    }

    fn report(&self) {
        let total = self.known.len();
        if let Some(error) = self.failing.as_deref().or(self.pool.failing()) {
            let error = Unassigned(error.to_owned());
            self.health
                .degraded("Waiting for the Kubernetes API server", &error);
            return;
        }
        if !self.is_listed || !self.pool.is_ready() {
            return;
        }
        let unreadable = self
            .unreadable
            .iter()
            .map(|name| format!("`{name}`: cannot be decoded"));
        let failed = self.known.iter().filter_map(|(name, known)| {
            let error = known.error.as_ref()?;
            Some(format!("`{name}`: {error}"))
        });
        let mut all: Vec<String> = unreadable.chain(failed).collect();
        let without = all.len();
        all.extend(self.pool.faults());
        if all.is_empty() {
            self.health.ok(format!("{total} nodes"));
            return;
        }
        let mut text = all[..all.len().min(NAMED)].join("; ");
        if all.len() > NAMED {
            text.push_str(&format!("; and {} more", all.len() - NAMED));
        }
        let message = format!("{without} of {total} nodes without their pod CIDRs");
        self.health.degraded(message, &Unassigned(text));
    }
}

async fn read(client: &dyn Client, name: &str) -> Result<RawObject, WriteError> {
    let kind = CiliumNode::kind();
    let request = timeout(REQUEST, client.get(&kind, "", name));
    Ok(request.await.map_err(|_| WriteError::Timeout)??)
}

async fn write(client: &dyn Client, part: Subresource, object: Value) -> Result<RawObject, WriteError> {
    let (kind, options) = (CiliumNode::kind(), WriteOptions::default());
    let request = timeout(REQUEST, client.update(&kind, "", part, object, &options));
    Ok(request.await.map_err(|_| WriteError::Timeout)??)
}

/// Member `name` of an object, which is made an object if it is none.
pub(crate) fn member<'a>(object: &'a mut Value, name: &str) -> &'a mut Value {
    if !object.is_object() {
        *object = json!({});
    }
    let member = &mut object[name];
    if !member.is_object() {
        *member = json!({});
    }
    member
}

fn set_error(object: &mut Value, error: Option<&str>) {
    let operator = member(member(member(object, "status"), "ipam"), "operator-status");
    *operator = error.map_or_else(|| json!({}), |error| json!({ "error": error }));
}

#[cfg(test)]
mod tests;
