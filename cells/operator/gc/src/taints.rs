// SPDX-License-Identifier: Apache-2.0

//! Cell: keeps pods off nodes whose agent is not ready, and sets the network condition of nodes.
//! Requires: a Kubernetes client, the tables `operator-nodes` and `cilium-pods`.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::ready;
use hive::config::Faults;
use hive::{Cell, Cfg, Jobs, Params, SpawnError};
use jiff::Timestamp;
use serde_json::{Value, json};
use skep_base_metrics::workqueue::WorkqueueRecorder;
use skep_k8s_client::{Api, Client, Patch, Subresource};
use skep_k8s_controller::{Controller, Reconciler, RequestError, Work, job, request};
use skep_k8s_types::slim::{Node, Str, Taint};
use statedb::{Db, Snapshot, Table};

use crate::agents::AgentRow;
use crate::objects::REASON;
use crate::tables::NodeRow;

/// How long changes are gathered.
const SETTLE: Duration = Duration::from_millis(50);

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
    let SyncParams {
        config,
        client,
        jobs,
        db,
        nodes,
        agents,
    } = params;
    jobs.spawn(job("sync", move || {
        let sync = Sync {
            client: client.clone(),
            config: config.clone(),
            db: db.clone(),
            nodes: nodes.clone(),
            agents: agents.clone(),
            written: HashMap::new(),
        };
        sync.controller()
    }))
}

/// A key is the name of a node.
struct Sync {
    client: Arc<dyn Client>,
    config: Cfg<Config>,
    db: Db,
    nodes: Table<NodeRow>,
    agents: Table<AgentRow>,
    /// Versions of nodes that were written, until the watch delivers the write.
    written: HashMap<Str, Str>,
}

impl Sync {
    fn controller(self) -> Controller<Self> {
        let (db, nodes, agents) = (self.db.clone(), self.nodes.clone(), self.agents.clone());
        let node_changes = nodes.follow(&db).stream(db.clone(), 1000, Duration::ZERO);
        let agent_changes = agents.follow(&db).stream(db.clone(), 1000, Duration::ZERO);
        let workers = self.config.taint_sync_workers;
        Controller::new(self, WorkqueueRecorder::default())
            .concurrency(workers)
            .wait_for(async move {
                nodes.wait_initialized(&db).await;
                agents.wait_initialized(&db).await;
            })
            .source(node_changes, |_, changes| {
                let rows = changes.iter().filter_map(|change| change.object());
                rows.map(|row| row.name.clone()).collect()
            })
            .source(agent_changes, |_, changes| {
                let rows = changes.iter().filter_map(|change| change.object());
                rows.map(|row| row.node.clone()).collect()
            })
    }

    /// Whether there is an agent on a node, and is ready. While one is replaced there are two: one that is ready is enough.
    fn agent(&self, snapshot: &Snapshot, node: &Str) -> Option<bool> {
        let agents = self.agents.all(snapshot).filter(|agent| agent.node == *node);
        agents
            .map(|agent| agent.is_ready)
            .reduce(|one, other| one | other)
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
}

impl Reconciler for Sync {
    type Key = Str;
    /// The version that a node had before it was written.
    type Output = Option<Str>;
    type Error = RequestError;
    const KEYS: &'static str = "nodes";
    const FAILED: &'static str = "were not updated";

    fn reconcile(&mut self, node: &Str) -> Work<Self> {
        let snapshot = self.db.read();
        let row = self.nodes.get(&snapshot, NodeRow::BY_NAME.key(node));
        let version = row.map(|row| row.resource_version.clone());
        let is_written = self.written.get(node).cloned() == version;
        if !is_written {
            self.written.remove(node);
        }
        let (Some(row), Some(is_ready), false) = (row, self.agent(&snapshot, node), is_written) else {
            return ready(Ok(None)).boxed();
        };
        let taints = self.taints(row, is_ready);
        let condition = is_ready && self.config.set_cilium_is_up_condition && !row.is_up;
        if taints.is_none() && !condition {
            return ready(Ok(None)).boxed();
        }
        let (api, node) = (Api::<Node>::all(self.client.clone()), node.clone());
        async move {
            let mut failed = None;
            if let Some(patch) = taints {
                let patch = Patch::Json(patch);
                failed = request(api.patch(&node, Subresource::None, &patch)).await.err();
            }
            if condition {
                let patch = Patch::Strategic(condition_patch(&Timestamp::now()));
                let patched = request(api.patch(&node, Subresource::Status, &patch)).await;
                failed = failed.or(patched.err());
            }
            failed.map_or(Ok(version), Err)
        }
        .boxed()
    }

    fn finished(
        &mut self,
        node: &Str,
        result: Result<Option<Str>, RequestError>,
    ) -> Result<Option<Duration>, RequestError> {
        if let Some(version) = result? {
            self.written.insert(node.clone(), version);
        }
        Ok(None)
    }

    fn delay(&self, _node: &Str) -> Duration {
        SETTLE
    }

    fn total(&self) -> usize {
        self.nodes.len(&self.db.read())
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
