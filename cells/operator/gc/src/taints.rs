// SPDX-License-Identifier: Apache-2.0

//! Cell: keeps pods off nodes whose agent is not ready, and sets the network condition of nodes.
//! Requires: a Kubernetes client, the tables `operator-nodes` and `cilium-pods`.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt, stream};
use hive::config::Faults;
use hive::{Cell, Cfg, Job, JobCtx, Jobs, Params, SpawnError};
use jiff::Timestamp;
use serde_json::{Value, json};
use skep_k8s_client::{Api, ApiError, Client, Patch, Subresource};
use skep_k8s_types::slim::{Node, Str, Taint};
use statedb::{Db, Snapshot, Table};

use crate::agents::AgentRow;
use crate::objects::REASON;
use crate::tables::NodeRow;

/// How long changes are gathered.
const SETTLE: Duration = Duration::from_millis(50);

/// Longest pause after failed writes.
const LONGEST: Duration = Duration::from_secs(30);

/// What the state of the agent on a node means for the node.
#[derive(Debug, Clone, hive::Config)]
#[config(validate = Config::check)]
pub struct Config {
    /// Remove the taint of nodes with a ready agent.
    #[config(default = true)]
    pub remove_cilium_node_taints: bool,
    /// Set the taint on nodes without a ready agent.
    #[config(default = false)]
    pub set_cilium_node_taints: bool,
    /// Set the NetworkUnavailable condition of nodes with a ready agent to false.
    #[config(default = true)]
    pub set_cilium_is_up_condition: bool,
    /// Key of the taint of nodes without a ready agent.
    #[config(default = "node.cilium.io/agent-not-ready")]
    pub agent_not_ready_taint_key: String,
    /// Number of nodes that are updated concurrently.
    #[config(default = 10)]
    pub taint_sync_workers: usize,
}

impl Config {
    fn check(&self, faults: &mut Faults) {
        if self.taint_sync_workers == 0 {
            faults.add("taint-sync-workers", "must be at least 1");
        }
        if self.agent_not_ready_taint_key.is_empty() {
            faults.add("agent-not-ready-taint-key", "must not be empty");
        }
    }

    fn is_on(&self) -> bool {
        self.remove_cilium_node_taints || self.set_cilium_node_taints || self.set_cilium_is_up_condition
    }
}

hive::catalogue!(cell);

/// Taints and conditions of nodes.
pub fn cell() -> Cell {
    Cell::module("node-taint-sync", "Taints and conditions of nodes")
        .config::<Config>()
        .when(Config::is_on)
        .run(start)
}

#[derive(Params)]
struct SyncParams {
    config: Cfg<Config>,
    client: Arc<dyn Client>,
    jobs: Jobs,
    db: Db,
    nodes: Table<NodeRow>,
    agents: Table<AgentRow>,
}

fn start(params: SyncParams) -> Result<(), SpawnError> {
    if !params.client.is_enabled() {
        return Ok(());
    }
    let sync = Arc::new(Sync {
        api: Api::all(params.client),
        config: params.config,
        db: params.db,
        nodes: params.nodes,
        agents: params.agents,
    });
    params.jobs.spawn(Job::once("sync", move |cx: JobCtx| {
        let sync = sync.clone();
        async move {
            cx.until_cancelled(sync.run(&cx)).await;
        }
    }))
}

struct Sync {
    api: Api<Node>,
    config: Cfg<Config>,
    db: Db,
    nodes: Table<NodeRow>,
    agents: Table<AgentRow>,
}

/// What is to be written to a node.
#[derive(Debug)]
struct Write {
    node: Str,
    resource_version: Str,
    taints: Option<Value>,
    condition: bool,
}

/// Why a node could not be written. Retried.
#[derive(Debug, thiserror::Error)]
#[error("node `{node}`")]
struct WriteError {
    node: Str,
    #[source]
    cause: ApiError,
}

impl Sync {
    async fn run(&self, cx: &JobCtx) {
        self.nodes.wait_initialized(&self.db).await;
        self.agents.wait_initialized(&self.db).await;
        // Versions of nodes that were written, until the watch delivers the write.
        let mut written: HashMap<Str, Str> = HashMap::new();
        let mut pause = Duration::ZERO;
        loop {
            let snapshot = self.db.read();
            let changed = (
                self.nodes.table_watch(&snapshot),
                self.agents.table_watch(&snapshot),
            );
            let mut writes = self.writes(&snapshot);
            writes.retain(|write| written.get(&write.node) != Some(&write.resource_version));
            let results: Vec<_> = stream::iter(writes)
                .map(|write| self.write(write))
                .buffer_unordered(self.config.taint_sync_workers)
                .collect()
                .await;
            let mut failed = None;
            for result in results {
                match result {
                    Ok((node, version)) => drop(written.insert(node, version)),
                    Err(error) => failed = Some(error),
                }
            }
            let Some(error) = failed else {
                cx.health.ok("Nodes are in sync");
                pause = Duration::ZERO;
                tokio::select! {
                    () = changed.0.closed() => {}
                    () = changed.1.closed() => {}
                }
                written.retain(|node, version| self.version(node).as_ref() == Some(version));
                tokio::time::sleep(SETTLE).await;
                continue;
            };
            cx.health.degraded("A node was not updated", &error);
            pause = (pause * 2).clamp(Duration::from_secs(1), LONGEST);
            tokio::time::sleep(pause).await;
        }
    }

    fn version(&self, node: &Str) -> Option<Str> {
        let snapshot = self.db.read();
        let row = self.nodes.get(&snapshot, NodeRow::BY_NAME.key(node))?;
        Some(row.resource_version.clone())
    }

    fn writes(&self, snapshot: &Snapshot) -> Vec<Write> {
        // While an agent is replaced there are two pods: one that is ready is enough.
        let mut ready: HashMap<&Str, bool> = HashMap::new();
        for agent in self.agents.all(snapshot).filter(|agent| !agent.node.is_empty()) {
            *ready.entry(&agent.node).or_default() |= agent.is_ready;
        }
        let writes = ready.into_iter().filter_map(|(node, is_ready)| {
            let row = self.nodes.get(snapshot, NodeRow::BY_NAME.key(node))?;
            let write = Write {
                node: node.clone(),
                resource_version: row.resource_version.clone(),
                taints: self.taints(row, is_ready),
                condition: is_ready && self.config.set_cilium_is_up_condition && !row.is_up,
            };
            (write.taints.is_some() || write.condition).then_some(write)
        });
        writes.collect()
    }

    /// The patch of a node's taints. It fails if they are not those that were seen.
    fn taints(&self, row: &NodeRow, is_ready: bool) -> Option<Value> {
        let key = self.config.agent_not_ready_taint_key.as_str();
        let has_taint = row.taints.iter().any(|taint| taint.key == key);
        let config = &self.config;
        let mut taints = row.taints.to_vec();
        match is_ready {
            true if has_taint && config.remove_cilium_node_taints => {
                taints.retain(|taint| taint.key != key);
            }
            false if !has_taint && config.set_cilium_node_taints => taints.push(Taint {
                key: Str::new(key),
                effect: Str::const_new("NoSchedule"),
                ..Taint::default()
            }),
            _ => return None,
        }
        let test = match &*row.taints {
            // There is nothing to compare with.
            [] => json!({ "op": "test", "path": "/metadata/resourceVersion", "value": row.resource_version }),
            taints => json!({ "op": "test", "path": "/spec/taints", "value": taints }),
        };
        Some(json!([test, { "op": "add", "path": "/spec/taints", "value": taints }]))
    }

    /// Writes a node; returns the version that it had before.
    async fn write(&self, write: Write) -> Result<(Str, Str), WriteError> {
        let Write {
            node,
            resource_version,
            taints,
            condition,
        } = write;
        let mut failed = None;
        if let Some(patch) = taints {
            let patched = self
                .api
                .patch(&node, Subresource::None, &Patch::Json(patch))
                .await;
            failed = patched.err();
        }
        if condition {
            let patch = Patch::Strategic(condition_patch(&Timestamp::now()));
            let patched = self.api.patch(&node, Subresource::Status, &patch).await;
            failed = failed.or(patched.err());
        }
        match failed {
            None => Ok((node, resource_version)),
            Some(cause) => Err(WriteError { node, cause }),
        }
    }
}

fn condition_patch(now: &Timestamp) -> Value {
    let now = now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    json!({ "status": { "conditions": [{
        "type": "NetworkUnavailable",
        "status": "False",
        "reason": REASON,
        "message": "Cilium is running on this node",
        "lastHeartbeatTime": now,
        "lastTransitionTime": now,
    }] } })
}
