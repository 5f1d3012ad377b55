// SPDX-License-Identifier: Apache-2.0

//! Cell: registers this node, and the addresses of its endpoints, in the key-value store of the cluster, where agents and other
//! clusters read them. Requires: a client of the store, the local node, table `endpoints`. Does nothing without a store.
//!
//! Keys have the lease of the agent: they stay over a restart, and end with the node.

mod values;

use std::{collections::BTreeMap, sync::Arc};

use hive::{Cell, Cfg, Job, JobCtx, Jobs, Params, SpawnError};
use skep_base_settings::cluster::ClusterSettings;
use skep_clustermesh_types::Kind;
use skep_endpoint::Endpoint;
use skep_kvstore_client::Client;
use skep_kvstore_store::{StoreMetrics, SyncStore, SyncStoreOptions};
use skep_node_local::LocalNode;
use statedb::{Db, Table};

use values::{Cluster, Values};

hive::catalogue!(cell);

#[must_use]
pub fn cell() -> Cell {
    Cell::module(
        "kvstore-registration",
        "This node and its endpoints in the key-value store",
    )
    .run(start)
}

#[derive(Params)]
struct RegistrationParams {
    cluster: Cfg<ClusterSettings>,
    client: Client,
    metrics: Option<Arc<StoreMetrics>>,
    db: Db,
    node: Table<LocalNode>,
    endpoints: Table<Endpoint>,
    jobs: Jobs,
}

fn start(params: RegistrationParams) -> Result<(), SpawnError> {
    if !params.client.is_enabled() {
        return Ok(());
    }
    let info = params.cluster.info();
    let cluster = Cluster {
        name: info.name.as_str().to_owned(),
        id: info.id,
    };
    let store = |kind: Kind| {
        let mut options = SyncStoreOptions::new(&*cluster.name, &kind.prefix(&cluster.name, false))
            .canary_prefix(kind.canary(false));
        if let Some(metrics) = &params.metrics {
            options = options.recorder(metrics.clone());
        }
        Registered {
            store: SyncStore::new(params.client.clone(), options),
            values: Values::new(),
        }
    };
    let registration = Registration {
        nodes: store(Kind::Nodes),
        addresses: store(Kind::Ips),
        db: params.db,
        node: params.node,
        endpoints: params.endpoints,
        cluster,
    };
    let registration = Arc::new(tokio::sync::Mutex::new(registration));
    params.jobs.spawn(Job::once("register", move |cx: JobCtx| {
        let registration = registration.clone();
        async move {
            let mut registration = registration.lock().await;
            let (nodes, addresses) = (
                registration.nodes.store.clone(),
                registration.addresses.store.clone(),
            );
            let work = async { tokio::join!(registration.follow(&cx), nodes.run(), addresses.run()) };
            cx.until_cancelled(work).await;
        }
    }))
}

/// Keys of a kind.
struct Registered {
    store: SyncStore,
    /// Last written values.
    values: Values,
}

impl Registered {
    /// Writes what differs.
    fn replace(&mut self, desired: Values) {
        for (name, value) in &desired {
            if self.values.get(name) != Some(value) {
                self.store.upsert(name, value.clone());
            }
        }
        for name in self.values.keys().filter(|name| !desired.contains_key(*name)) {
            self.store.delete(name);
        }
        self.values = desired;
    }
}

struct Registration {
    cluster: Cluster,
    db: Db,
    node: Table<LocalNode>,
    endpoints: Table<Endpoint>,
    nodes: Registered,
    addresses: Registered,
}

impl Registration {
    async fn follow(&mut self, cx: &JobCtx) {
        self.node.wait_initialized(&self.db).await;
        loop {
            let snapshot = self.db.read();
            let changed = (
                self.node.table_watch(&snapshot),
                self.endpoints.table_watch(&snapshot),
            );
            let mut addresses = BTreeMap::new();
            if let Some(node) = self.node.all(&snapshot).next() {
                let named = values::node(node, &self.cluster).map(|value| (node.name.to_string(), value));
                self.nodes.replace(named.into_iter().collect());
                for endpoint in self.endpoints.all(&snapshot) {
                    addresses.extend(values::addresses(endpoint, node, &self.cluster));
                }
            }
            self.addresses.replace(addresses);
            drop(snapshot);
            cx.health
                .ok(format!("{} addresses of endpoints", self.addresses.values.len()));
            tokio::select! {
                () = changed.0.closed() => {}
                () = changed.1.closed() => {}
            }
        }
    }
}
