// SPDX-License-Identifier: Apache-2.0

//! The controller: CiliumNodes in, what is allocated to them in their specs and errors in their statuses out. A key is the
//! name of a node.
//!
//! Nothing is allocated until all nodes are listed and restored. One node is assigned at a time, by its last version, which
//! alone is written: a conflict means to assign again. What waits to be written is reserved. What is allocated is up to a
//! [`NodeAllocator`].

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use skep_base_metrics::workqueue::WorkqueueRecorder;
use skep_k8s_client::{Client, Subresource, WriteOptions};
use skep_k8s_controller::{
    Change, Controller, Failure, Reconciler, RequestError, Retry, Store, Watches, Work, request,
};
use skep_k8s_crds::node::CiliumNode;
use skep_k8s_types::{ObjectKey, Resource};

use crate::allocator::OccupyError;
use crate::recorder::{IpamRecorder, PoolUsage};
use crate::rounds::Rounds;

/// Nodes with this annotation set to `true` are ignored.
const IGNORE: &str = "ipam.cilium.io/ignore";

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
pub(crate) trait NodeAllocator: Send + 'static {
    /// The part of a node's spec that it writes.
    type Spec: PartialEq + Send + Sync + 'static;

    /// Faults for health, beside those of nodes.
    fn faults(&self) -> Vec<String> {
        Vec::new()
    }
    /// Whether the pools, or what nodes hold of them, have changed since the last call.
    fn take_changed(&mut self) -> bool;
    /// How much of each pool is in use. It looks at every prefix in use.
    fn usage(&self) -> Vec<PoolUsage>;
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

/// Why a node does not have its networks.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NodeError {
    #[error(transparent)]
    Request(#[from] RequestError),
    /// It is assigned again.
    #[error("it has changed since it was assigned")]
    Stale,
    /// Its status has the error, too.
    #[error("{0}")]
    Unassigned(String),
}

impl Failure for NodeError {
    fn retry(&self) -> Retry {
        match self {
            Self::Request(error) => error.retry(),
            Self::Stale => Retry::Conflict,
            Self::Unassigned(_) => Retry::OnChange,
        }
    }
}

/// Keeps the networks of all nodes.
pub(crate) struct NodePool<A> {
    client: Arc<dyn Client>,
    pub(crate) pool: A,
    nodes: Store<CiliumNode>,
    /// Nodes that do not have their networks.
    failed: BTreeSet<String>,
    recorder: Arc<dyn IpamRecorder>,
    rounds: Rounds,
    /// Whether the usage of pools was recorded since the start.
    is_usage_recorded: bool,
}

/// A controller without the sources of its pool.
pub(crate) fn controller<A: NodeAllocator>(
    client: &Arc<dyn Client>,
    pool: A,
    recorder: Arc<dyn IpamRecorder>,
) -> Controller<NodePool<A>> {
    let nodes = NodePool::new(client.clone(), pool, recorder);
    Controller::new(nodes, WorkqueueRecorder::default())
        .concurrency(1)
        .watch_all::<CiliumNode>(client)
}

fn status_error(node: &CiliumNode) -> &str {
    let ipam = node.status.as_ref().and_then(|status| status.ipam.as_ref());
    let operator = ipam.and_then(|ipam| ipam.operator_status.as_ref());
    operator
        .and_then(|operator| operator.error.as_deref())
        .unwrap_or_default()
}

impl<A: NodeAllocator> NodePool<A> {
    pub(crate) fn new(client: Arc<dyn Client>, pool: A, recorder: Arc<dyn IpamRecorder>) -> Self {
        Self {
            client,
            pool,
            nodes: Store::default(),
            failed: BTreeSet::new(),
            rounds: Rounds::new(recorder.clone()),
            recorder,
            is_usage_recorded: false,
        }
    }

    /// Names of all nodes, to be queued.
    pub(crate) fn all(&self) -> Vec<String> {
        self.nodes.keys().map(|key| key.name.to_string()).collect()
    }

    /// Queues nodes, and those that wait for what was released.
    pub(crate) fn queue(&mut self, mut nodes: Vec<String>) -> Vec<String> {
        if self.pool.take_released() {
            nodes.extend(self.failed.iter().cloned());
        }
        for node in &nodes {
            self.rounds.queued(node);
        }
        nodes
    }

    /// The last version of a node, unless it is ignored or has become invalid.
    fn node(&self, name: &str) -> Option<Arc<CiliumNode>> {
        let key = ObjectKey {
            name: name.into(),
            ..ObjectKey::default()
        };
        let node = self.nodes.get(&key).filter(|_| !self.nodes.is_invalid(&key))?;
        let is_ignored = node.metadata.annotations.get(IGNORE) == Some("true");
        (!is_ignored).then(|| node.clone())
    }
}

impl<A: NodeAllocator> Reconciler for NodePool<A> {
    type Key = String;
    type Output = ();
    type Error = NodeError;
    const KEYS: &'static str = "nodes";
    const FAILED: &'static str = "without their pod CIDRs";

    fn reconcile(&mut self, name: &String) -> Work<Self> {
        self.rounds.begun(name);
        let Some(node) = self.node(name) else {
            return Box::pin(async { Ok(()) });
        };
        let assigned = self.pool.assign(&node);
        let client = self.client.clone();
        Box::pin(async move {
            match write::<A>(&*client, &node, &assigned).await {
                // Its deletion is on the way.
                Err(NodeError::Request(error)) if error.is_not_found() => return Ok(()),
                written => written?,
            }
            assigned
                .error
                .map_or(Ok(()), |error| Err(NodeError::Unassigned(error)))
        })
    }

    fn finished(
        &mut self,
        name: &String,
        result: Result<(), NodeError>,
    ) -> Result<Option<Duration>, NodeError> {
        let retry = result.as_ref().err().map(Failure::retry);
        match retry {
            None => _ = self.failed.remove(name),
            Some(Retry::Conflict) => {}
            Some(_) => _ = self.failed.insert(name.clone()),
        }
        self.rounds.finished(name, retry == Some(Retry::Unanswered));
        result.map(|()| None)
    }

    fn wait(&self) -> Duration {
        match self.nodes.has_gaps() {
            // What a node holds is not known: it may be anything.
            true => Duration::MAX,
            false => self.rounds.wait(),
        }
    }

    fn total(&self) -> usize {
        self.nodes.keys().len()
    }

    fn faults(&self) -> Vec<String> {
        self.pool.faults()
    }

    fn record(&mut self) {
        let invalid = self.nodes.watch().invalid().keys();
        let unreadable = invalid.filter(|key| self.nodes.get(key).is_none()).count();
        self.recorder
            .nodes(self.total() + unreadable, self.failed.len() + unreadable);
        // There are many events of nodes, and few of them change a pool.
        if self.pool.take_changed() | !std::mem::replace(&mut self.is_usage_recorded, true) {
            self.recorder.pools(&self.pool.usage());
        }
    }
}

impl<A: NodeAllocator> Watches<CiliumNode> for NodePool<A> {
    fn store(&mut self) -> &mut Store<CiliumNode> {
        &mut self.nodes
    }

    fn affected(&mut self, change: &Change<CiliumNode>) -> Vec<String> {
        let name = &change.key.name;
        match &change.new {
            Some(node) => self.pool.restore(node),
            None => self.pool.remove(name),
        }
        self.queue(vec![name.to_string()])
    }
}

/// Writes what is assigned to a node, if it is still the version that it was assigned by.
async fn write<A: NodeAllocator>(
    client: &dyn Client,
    node: &CiliumNode,
    assigned: &Assigned<A::Spec>,
) -> Result<(), NodeError> {
    let name = node.metadata.name.as_str();
    let is_same = assigned.spec == A::spec(node);
    let error = assigned.error.as_deref().unwrap_or_default();
    if is_same && error == status_error(node) {
        return Ok(());
    }
    let (kind, options) = (CiliumNode::kind(), WriteOptions::default());
    let read = request(client.get(&kind, "", name)).await?;
    let read = read.to_value().map_err(RequestError::from)?;
    let mut object = (*read).clone();
    if object["metadata"]["resourceVersion"] != *node.metadata.resource_version {
        return Err(NodeError::Stale);
    }
    for duplicate in &assigned.duplicates {
        tracing::warn!(node = name, error = %duplicate, "Duplicate CIDR, will be released from this node");
    }
    if !is_same {
        A::set_spec(&mut object, &assigned.spec);
        let stored = request(client.update(&kind, "", Subresource::None, object, &options)).await?;
        let stored = stored.to_value().map_err(RequestError::from)?;
        object = (*stored).clone();
        let pod_cidrs = A::text(&assigned.spec);
        tracing::info!(node = name, pod_cidrs, "Assigned pod CIDRs");
    }
    if error != status_error(node) {
        set_error(&mut object, assigned.error.as_deref());
        request(client.update(&kind, "", Subresource::Status, object, &options)).await?;
    }
    Ok(())
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
