// SPDX-License-Identifier: Apache-2.0

//! Cell: deletes the keys of nodes that left the cluster.
//! Requires: a client of the key-value store, the tables `cilium-nodes` and `cilium-pods`, settings of the cluster.
//!
//! Agents write the key of their node with a lease, so a key outlives its node by the time of that lease. A node is judged
//! when its CiliumNode is deleted, and a while after its key was written. Its key is deleted if there is no CiliumNode and no
//! agent on the node, which would write the key again.

mod schedule;

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use hive::{Cell, Cfg, Job, JobCtx, Jobs, Params, SpawnError};
use skep_base_settings::cluster::ClusterSettings;
use skep_clustermesh_types::Kind;
use skep_kvstore_client::{Client, Error, Key};
use skep_kvstore_store::{
    Decoder, NoStoreRecorder, Observer, StoreMetrics, StoreRecorder, WatchStore, WatchStoreOptions,
};
use skep_operator_gc::agents::AgentRow;
use skep_operator_gc::tables::CiliumNodeRow;
use statedb::{Db, Table};
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::time::{Instant, sleep_until};

use self::schedule::Schedule;

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
    /// How long after the first failure; twice as long after each further one.
    pub first_retry: Duration,
    /// How long after a failure at most.
    pub max_retry: Duration,
}

impl Default for NodeTimes {
    fn default() -> Self {
        Self {
            after_upsert: Duration::from_secs(60),
            first_retry: Duration::from_secs(1),
            max_retry: Duration::from_secs(120),
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
    let collector = Arc::new(Collector {
        prefix: Kind::Nodes.prefix(cluster.as_str(), false),
        options: WatchStoreOptions {
            recorder,
            ..WatchStoreOptions::new(cluster.as_str())
        },
        client: params.client,
        db: params.db,
        cilium_nodes: params.cilium_nodes,
        agents: params.agents,
        times: params.times.unwrap_or_default(),
    });
    params.jobs.spawn(Job::once("collect", move |cx: JobCtx| {
        let collector = collector.clone();
        async move {
            cx.until_cancelled(collector.run(&cx)).await;
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

enum Change {
    Upsert(Key),
    Delete(Key),
}

struct Changes(UnboundedSender<Change>);

impl Observer<Key, ()> for Changes {
    fn upsert(&mut self, name: &Key, _: &Arc<()>) {
        // The receiver ends with the store.
        let _ = self.0.send(Change::Upsert(name.clone()));
    }

    fn delete(&mut self, name: &Key, _: &Arc<()>) {
        let _ = self.0.send(Change::Delete(name.clone()));
    }
}

/// Why a node could not be judged. Retried.
#[derive(Debug, thiserror::Error)]
#[error("node `{node}`")]
struct NodeError {
    node: Key,
    #[source]
    cause: Error,
}

/// What becomes of the key of a node.
enum Verdict {
    /// The node is part of the cluster, or the key is gone.
    Done,
    /// It may be deleted later: an agent runs, or the key was written meanwhile.
    Later,
}

struct Collector {
    options: WatchStoreOptions,
    /// Prefix of the keys, without a `/` at the end.
    prefix: String,
    client: Client,
    db: Db,
    cilium_nodes: Table<CiliumNodeRow>,
    agents: Table<AgentRow>,
    times: NodeTimes,
}

impl Collector {
    async fn run(&self, cx: &JobCtx) {
        self.cilium_nodes.wait_initialized(&self.db).await;
        self.agents.wait_initialized(&self.db).await;
        let (sender, changes) = mpsc::unbounded_channel();
        let mut store = WatchStore::new(Names, Changes(sender), self.options.clone());
        tokio::join!(store.watch(&self.client, &self.prefix), self.collect(cx, changes));
    }

    async fn collect(&self, cx: &JobCtx, mut keys: UnboundedReceiver<Change>) {
        let nodes = self.cilium_nodes.follow(&self.db);
        let mut nodes = pin!(nodes.stream(self.db.clone(), 1000, Duration::ZERO));
        let mut schedule = Schedule::default();
        loop {
            let first = schedule.first();
            let due = async {
                match first {
                    Some((due, name)) => {
                        sleep_until(due).await;
                        name
                    }
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                Some(change) = keys.recv() => match change {
                    Change::Upsert(name) => schedule.add(&name, Instant::now() + self.times.after_upsert),
                    Change::Delete(name) => schedule.remove(&name),
                },
                Some(batch) = nodes.next() => {
                    for row in batch.iter().filter(|change| change.is_delete()).filter_map(|change| change.object()) {
                        schedule.add(&row.name().into(), Instant::now());
                    }
                }
                name = due => self.attempt(cx, &mut schedule, name).await,
            }
        }
    }

    /// Judges a node that is due.
    async fn attempt(&self, cx: &JobCtx, schedule: &mut Schedule, node: Key) {
        let result = self.judge(&node).await;
        match result {
            Ok(Verdict::Done) => {
                schedule.remove(&node);
                return cx.health.ok("Keys of nodes are in sync");
            }
            Ok(Verdict::Later) => cx.health.ok("Keys of nodes are in sync"),
            Err(cause) => {
                let node = node.clone();
                let error = NodeError { node, cause };
                cx.health.degraded("The key of a node was not checked", &error);
            }
        }
        let NodeTimes {
            first_retry,
            max_retry,
            ..
        } = self.times;
        schedule.retry(&node, Instant::now(), first_retry, max_retry);
    }

    async fn judge(&self, node: &Key) -> Result<Verdict, Error> {
        let Some(item) = self.client.get(&format!("{}/{node}", self.prefix)).await? else {
            return Ok(Verdict::Done);
        };
        {
            let snapshot = self.db.read();
            if self
                .cilium_nodes
                .get(&snapshot, CiliumNodeRow::BY_NAME.key(node))
                .is_some()
            {
                return Ok(Verdict::Done);
            }
            let is_here = |agent: &AgentRow| agent.is_running && agent.node == **node;
            if self.agents.all(&snapshot).any(|agent| is_here(agent)) {
                return Ok(Verdict::Later);
            }
        }
        if !self.client.delete_if_unchanged(&item).await? {
            return Ok(Verdict::Later);
        }
        tracing::info!(%node, "Deleted key of removed node");
        Ok(Verdict::Done)
    }
}
