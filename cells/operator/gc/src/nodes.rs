// SPDX-License-Identifier: Apache-2.0

//! Cell: deletes CiliumNodes whose node is gone.
//! Requires: a Kubernetes client, the tables `cilium-nodes` and `operator-nodes`.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use hive::{Cell, Cfg, Job, JobCtx, Jobs, Params, SpawnError};
use parking_lot::Mutex;
use skep_k8s_client::{Api, Client};
use skep_k8s_crds::Config as CrdConfig;
use skep_k8s_types::slim::Str;
use statedb::{Db, Table};
use tokio::time::Instant;

use crate::endpoints::delete_once;
use crate::failure::{GcError, Rejected, delete};
use crate::objects::CiliumNode;
use crate::tables::{CiliumNodeRow, NodeRow};

/// When CiliumNodes are judged.
#[derive(Debug, Clone, hive::Config)]
pub struct Config {
    /// Interval of CiliumNode garbage collection; 0: never. A CiliumNode without a node is deleted in the
    /// second pass.
    #[config(default = "5m")]
    pub nodes_gc_interval: Duration,
}

hive::catalogue!(cell);

/// Deletes CiliumNodes without a node.
pub fn cell() -> Cell {
    Cell::module("cilium-node-gc", "Deletes CiliumNodes without a node")
        .config::<Config>()
        .run(start)
}

#[derive(Params)]
struct CollectorParams {
    config: Cfg<Config>,
    crds: Cfg<CrdConfig>,
    client: Arc<dyn Client>,
    jobs: Jobs,
    db: Db,
    cilium_nodes: Table<CiliumNodeRow>,
    nodes: Table<NodeRow>,
}

fn start(params: CollectorParams) -> Result<(), SpawnError> {
    if !params.client.is_enabled() {
        return Ok(());
    }
    if !params.crds.enable_ciliumnode_crd {
        return delete_once::<CiliumNode>(&params.jobs, params.client);
    }
    let interval = params.config.nodes_gc_interval;
    if interval.is_zero() {
        return Ok(());
    }
    let collector = Arc::new(Collector {
        api: Api::all(params.client),
        db: params.db,
        cilium_nodes: params.cilium_nodes,
        nodes: params.nodes,
        candidates: Mutex::default(),
        interval,
    });
    let pass = Job::every(interval, "collect", move |cx: JobCtx| {
        let collector = collector.clone();
        async move {
            match cx.until_cancelled(collector.pass()).await {
                Some(passed) => passed,
                None => Ok(()),
            }
        }
    });
    params.jobs.spawn(pass.run_at_start())
}

struct Collector {
    api: Api<CiliumNode>,
    db: Db,
    cilium_nodes: Table<CiliumNodeRow>,
    nodes: Table<NodeRow>,
    /// CiliumNodes without a node, by uid, and since when.
    candidates: Mutex<HashMap<Str, Instant>>,
    interval: Duration,
}

impl Collector {
    async fn pass(&self) -> Result<(), GcError> {
        self.cilium_nodes.wait_initialized(&self.db).await;
        let snapshot = self.nodes.wait_initialized(&self.db).await;
        let orphans = self.cilium_nodes.all(&snapshot).filter(|row| {
            let has_node = self
                .nodes
                .get(&snapshot, NodeRow::BY_NAME.key(&row.metadata.name))
                .is_some();
            !has_node && !row.has_owner && !row.is_kept
        });
        let orphans: Vec<_> = orphans.map(|row| row.metadata.clone()).collect();
        let due: Vec<_> = {
            let now = Instant::now();
            let mut candidates = self.candidates.lock();
            candidates.retain(|uid, _| orphans.iter().any(|orphan| orphan.uid == *uid));
            let is_due = |uid: &Str| *candidates.entry(uid.clone()).or_insert(now) + self.interval <= now;
            let mut is_due = is_due;
            orphans.into_iter().filter(|orphan| is_due(&orphan.uid)).collect()
        };
        let mut rejected = Rejected::default();
        for node in due {
            match delete(&self.api, &node.name, &node.uid, &Str::default(), "").await {
                Ok(true) => {
                    tracing::info!(name = %node.name, "Deleted CiliumNode without a node");
                }
                Ok(false) => {}
                Err(cause) => {
                    rejected.keep(GcError::Delete {
                        kind: "CiliumNode".to_owned(),
                        name: node.name.to_string(),
                        cause: cause.into(),
                    })?;
                }
            }
        }
        rejected.finish()
    }
}
