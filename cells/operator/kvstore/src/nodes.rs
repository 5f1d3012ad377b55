// SPDX-License-Identifier: Apache-2.0

//! Cell: deletes the keys of nodes that left the cluster.
//! Requires: a client of the key-value store, the tables `cilium-nodes` and `cilium-pods`, settings of the cluster.
//!
//! Agents write the key of their node with a lease, so a key outlives its node by the time of that lease. A node is judged
//! when its CiliumNode is deleted or its agent ends, and a while after its key was written. Its key is deleted if there is no CiliumNode and no
//! agent on the node, which would write the key again.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::ready;
use futures::{FutureExt, stream};
use hive::{Cell, Cfg, Job, JobCtx, Jobs, Params, SpawnError};
use skep_base_metrics::workqueue::WorkqueueRecorder;
use skep_base_settings::cluster::ClusterSettings;
use skep_clustermesh_types::Kind;
use skep_k8s_controller::{Controller, Failure, Reconciler, Retry, Work};
use skep_kvstore_client::{Client, Error, Key};
use skep_kvstore_store::{
    Decoder, NoStoreRecorder, Observer, StoreMetrics, StoreRecorder, WatchStore, WatchStoreOptions,
};
use skep_operator_gc::agents::AgentRow;
use skep_operator_gc::tables::CiliumNodeRow;
use statedb::{Db, Table};
use tokio::sync::mpsc::{self, UnboundedSender};

/// Whether keys of nodes are deleted.
#[derive(Debug, Clone, hive::Config)]
pub struct Config {
    /// Delete keys of removed nodes from the key-value store.
    #[config(default = true)]
    pub synchronize_k8s_nodes: bool,
}

/// When nodes are judged. A cell may provide others than the default.
#[derive(Debug, Clone, Copy, hive::Value)]
pub struct NodeTimes {
    /// How long after its key was seen.
    pub after_upsert: Duration,
}

impl Default for NodeTimes {
    fn default() -> Self {
        Self {
            after_upsert: Duration::from_secs(60),
        }
    }
}

hive::catalogue!(cell);

/// Deletes the keys of nodes that left the cluster.
pub fn cell() -> Cell {
    Cell::module(
        "kvstore-nodes-gc",
        "Deletes the keys of nodes that left the cluster",
    )
    .config::<Config>()
    .when(|config: &Config| config.synchronize_k8s_nodes)
    .run(start)
}

#[derive(Params)]
struct CollectorParams {
    cluster: Cfg<ClusterSettings>,
    client: Client,
    kubernetes: Arc<dyn skep_k8s_client::Client>,
    jobs: Jobs,
    db: Db,
    cilium_nodes: Table<CiliumNodeRow>,
    agents: Table<AgentRow>,
    times: Option<NodeTimes>,
    metrics: Option<Arc<StoreMetrics>>,
}

fn start(params: CollectorParams) -> Result<(), SpawnError> {
    // Without the objects, no node would seem to be part of the cluster.
    if !params.client.is_enabled() || !params.kubernetes.is_enabled() {
        return Ok(());
    }
    let cluster = params.cluster.info().name;
    let recorder: Arc<dyn StoreRecorder> = match params.metrics {
        Some(metrics) => metrics,
        None => Arc::new(NoStoreRecorder),
    };
    let options = WatchStoreOptions {
        recorder,
        ..WatchStoreOptions::new(cluster.as_str())
    };
    let CollectorParams {
        client,
        jobs,
        db,
        cilium_nodes,
        agents,
        ..
    } = params;
    let prefix = Kind::Nodes.prefix(cluster.as_str(), false);
    let after_upsert = params.times.unwrap_or_default().after_upsert;
    jobs.spawn(Job::once("collect", move |cx: JobCtx| {
        let (sender, mut keys) = mpsc::unbounded_channel();
        let mut store = WatchStore::new(Names, Keys(sender), options.clone());
        let (client, prefix) = (client.clone(), prefix.clone());
        let collector = Collector {
            prefix: prefix.clone(),
            client: client.clone(),
            db: db.clone(),
            cilium_nodes: cilium_nodes.clone(),
            agents: agents.clone(),
            after_upsert,
            left: BTreeSet::new(),
        };
        let controller = collector
            .controller()
            .source(stream::poll_fn(move |cx| keys.poll_recv(cx)), |_, key| vec![key]);
        async move {
            let watch = async { tokio::join!(store.watch(&client, &prefix), controller.run(&cx.health)) };
            cx.until_cancelled(watch).await;
        }
    }))
}

/// Reads the names of keys, not the values.
struct Names;

impl Decoder for Names {
    type Key = Key;
    type Value = ();
    type Kept = Arc<()>;
    type Error = Infallible;

    fn decode(&self, name: &Key, _: &Bytes) -> Result<(Key, ()), Infallible> {
        Ok((name.clone(), ()))
    }
}

/// Sends the keys that are written.
struct Keys(UnboundedSender<Key>);

impl Observer<Key, ()> for Keys {
    fn upsert(&mut self, name: &Key, _: &Arc<()>) {
        // The receiver ends with the store.
        let _ = self.0.send(name.clone());
    }

    fn delete(&mut self, _: &Key, _: &Arc<()>) {}
}

/// Why a node could not be judged. Retried.
#[derive(Debug, thiserror::Error)]
#[error("node `{node}`")]
struct NodeError {
    node: Key,
    #[source]
    cause: Error,
}

impl Failure for NodeError {
    fn retry(&self) -> Retry {
        Retry::Backoff
    }
}

/// A key is the name of a node.
struct Collector {
    /// Prefix of the keys, without a `/` at the end.
    prefix: String,
    client: Client,
    db: Db,
    cilium_nodes: Table<CiliumNodeRow>,
    agents: Table<AgentRow>,
    after_upsert: Duration,
    /// Nodes whose CiliumNode or agent is gone: they are judged at once.
    left: BTreeSet<Key>,
}

impl Collector {
    fn controller(self) -> Controller<Self> {
        let (db, nodes, agents) = (self.db.clone(), self.cilium_nodes.clone(), self.agents.clone());
        let node_changes = nodes.follow(&db).stream(db.clone(), 1000, Duration::ZERO);
        let agent_changes = agents.follow(&db).stream(db.clone(), 1000, Duration::ZERO);
        Controller::new(self, WorkqueueRecorder::default())
            .wait_for(async move {
                nodes.wait_initialized(&db).await;
                agents.wait_initialized(&db).await;
            })
            .source(node_changes, |collector, changes| {
                let deleted = changes.iter().filter(|change| change.is_delete());
                let rows = deleted.filter_map(|change| change.object());
                collector.left(rows.map(|row| row.name().into()).collect())
            })
            .source(agent_changes, |collector, changes| {
                let changes = changes.iter();
                let rows = changes.filter_map(|change| Some((change.object()?, change.is_delete())));
                let ended = rows.filter(|(row, is_deleted)| *is_deleted || !row.is_running);
                let nodes = ended.filter(|(row, _)| !row.node.is_empty());
                collector.left(nodes.map(|(row, _)| row.node.as_str().into()).collect())
            })
    }

    fn left(&mut self, nodes: Vec<Key>) -> Vec<Key> {
        self.left.extend(nodes.iter().cloned());
        nodes
    }

    /// Whether a node is part of the cluster, or its agent would write the key again.
    fn is_here(&self, node: &Key) -> bool {
        let snapshot = self.db.read();
        let row = self.cilium_nodes.get(&snapshot, CiliumNodeRow::BY_NAME.key(node));
        let runs = |agent: &AgentRow| agent.is_running && agent.node == **node;
        row.is_some() || self.agents.all(&snapshot).any(|agent| runs(agent))
    }
}

impl Reconciler for Collector {
    type Key = Key;
    type Output = ();
    type Error = NodeError;
    const KEYS: &'static str = "nodes";
    const FAILED: &'static str = "whose keys were not checked";

    fn reconcile(&mut self, node: &Key) -> Work<Self> {
        self.left.remove(node);
        if self.is_here(node) {
            return ready(Ok(())).boxed();
        }
        let (client, node) = (self.client.clone(), node.clone());
        let key = format!("{}/{node}", self.prefix);
        let delete = async move {
            if let Some(item) = client.get(&key).await?
                && client.delete_if_unchanged(&item).await?
            {
                tracing::info!(key, "Deleted key of removed node");
            }
            Ok(())
        };
        let failed = |cause| NodeError { node, cause };
        delete
            .map(|deleted: Result<(), Error>| deleted.map_err(failed))
            .boxed()
    }

    fn delay(&self, node: &Key) -> Duration {
        match self.left.contains(node) {
            true => Duration::ZERO,
            false => self.after_upsert,
        }
    }

    fn total(&self) -> usize {
        self.cilium_nodes.len(&self.db.read())
    }

    fn summary(&self, failed: usize) -> String {
        match failed {
            0 => "Keys of nodes are in sync".to_owned(),
            _ => format!("{failed} {} {}", Self::KEYS, Self::FAILED),
        }
    }
}
