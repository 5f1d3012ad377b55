// SPDX-License-Identifier: Apache-2.0

//! Cell: deletes CiliumIdentities that nothing uses.
//! Requires: a Kubernetes client, the tables `cilium-identities` and `cilium-endpoints` or `cilium-endpoint-slices`.
//!
//! An identity shows life when an endpoint uses it and with every change of the object. One without a sign of life for the
//! heartbeat timeout is marked first, by an annotation: agents that still want it see that and remove the mark. If nothing
//! happens for another timeout, it is deleted, unless it has changed since. A restart forgets all signs of life, so the
//! timeouts begin anew.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use hive::{Cell, Cfg, Job, JobCtx, Jobs, Params, SpawnError};
use jiff::Timestamp;
use parking_lot::Mutex;
use serde_json::{Map, Value};
use skep_base_metrics::{CounterVec, GaugeVec, Metrics};
use skep_base_settings::identity::IdentityConfig;
use skep_k8s_client::{Api, ApiError, Client, ListOptions, Subresource, WriteOptions};
use skep_k8s_crds::Config as CrdConfig;
use skep_k8s_types::Resource;
use skep_k8s_types::selector::FieldSelector;
use skep_k8s_types::slim::{CiliumIdentity, Str};
use statedb::{Db, Snapshot, Table};
use tokio::time::Instant;

use crate::failure::{GcError, Rejected, delete};
use crate::objects::HEARTBEAT;
use crate::tables::{EndpointRow, IdentityRow, Reference, SliceRow};

/// When identities are judged: CiliumIdentities, and those in the key-value store.
#[derive(Debug, Clone, hive::Config)]
pub struct Config {
    /// Interval of identity garbage collection; 0: never.
    #[config(default = "15m")]
    pub identity_gc_interval: Duration,
    /// Time without use after which an identity is marked for deletion, and then deleted.
    #[config(default = "30m")]
    pub identity_heartbeat_timeout: Duration,
    /// Maximum number of identities deleted per `identity-gc-rate-interval`.
    #[config(default = 2500)]
    pub identity_gc_rate_limit: u32,
    /// Interval of `identity-gc-rate-limit`.
    #[config(default = "1m")]
    pub identity_gc_rate_interval: Duration,
}

/// What passes found.
#[derive(Debug, Metrics)]
#[metrics(prefix = "identity_gc")]
pub struct IdentityMetrics {
    /// Identities after the last garbage collection, alive and deleted.
    #[metric(labels = ["status", "identity_type"])]
    entries: GaugeVec,
    /// Garbage collection runs.
    #[metric(labels = ["outcome", "identity_type"])]
    runs: CounterVec,
    /// Duration of the last garbage collection.
    #[metric(labels = ["outcome", "identity_type"])]
    latency: GaugeVec,
}

/// The result of a pass.
#[derive(Debug, Clone, Copy)]
pub struct Pass {
    /// Where identities are: `crd` or `kvstore`.
    pub kind: &'static str,
    /// Whether all identities were judged.
    pub is_success: bool,
    /// How long it took.
    pub took: Duration,
    /// Identities that are left.
    pub alive: usize,
    /// Identities that were deleted.
    pub deleted: usize,
}

impl IdentityMetrics {
    pub fn pass(&self, pass: &Pass) {
        let outcome = if pass.is_success { "success" } else { "fail" };
        self.runs.with([outcome, pass.kind]).inc();
        self.latency
            .with([outcome, pass.kind])
            .set(pass.took.as_secs_f64());
        self.entries.with(["alive", pass.kind]).set(pass.alive as f64);
        self.entries.with(["deleted", pass.kind]).set(pass.deleted as f64);
    }
}

hive::catalogue!(cell);
hive::catalogue!(objects_cell);

pub fn cell() -> Cell {
    Cell::module("k8s-identities-gc", "Deletes CiliumIdentities that nothing uses")
        .config::<Config>()
        .provide(skep_base_metrics::provided::<IdentityMetrics>)
        .run(start)
}

/// Provides the CiliumIdentities of the cluster to other cells: [`ObjectIdentities`].
pub fn objects_cell() -> Cell {
    Cell::module("cilium-identities", "CiliumIdentities of the cluster")
        .provide(ObjectIdentities::new)
        .library()
}

#[derive(Clone, hive::Value)]
pub struct ObjectIdentities {
    db: Db,
    table: Table<IdentityRow>,
}

impl ObjectIdentities {
    fn new(db: Db, table: Table<IdentityRow>) -> Self {
        Self { db, table }
    }

    /// Their names, which are their ids. Waits until they are listed.
    pub async fn names(&self) -> HashSet<Str> {
        let snapshot = self.table.wait_initialized(&self.db).await;
        let names = self.table.all(&snapshot).map(|row| row.metadata.name.clone());
        names.collect()
    }
}

#[derive(Params)]
struct CollectorParams {
    config: Cfg<Config>,
    mode: Cfg<IdentityConfig>,
    crds: Cfg<CrdConfig>,
    client: Arc<dyn Client>,
    jobs: Jobs,
    db: Db,
    identities: Table<IdentityRow>,
    endpoints: Table<EndpointRow>,
    slices: Table<SliceRow>,
    metrics: Arc<IdentityMetrics>,
}

fn start(params: CollectorParams) -> Result<(), SpawnError> {
    let config = (*params.config).clone();
    if !params.client.is_enabled()
        || config.identity_gc_interval.is_zero()
        || !params.mode.identity_allocation_mode.uses_objects()
    {
        return Ok(());
    }
    let interval = config.identity_gc_interval;
    let jobs = params.jobs;
    let collector = Arc::new(Collector {
        users: if params.crds.enable_cilium_endpoint_slice {
            Users::Slices(params.slices)
        } else {
            Users::Endpoints(params.endpoints)
        },
        client: params.client,
        db: params.db,
        identities: params.identities,
        signs: Mutex::default(),
        metrics: params.metrics,
        config,
    });
    let observer = collector.clone();
    jobs.spawn(Job::once("observe", move |cx: JobCtx| {
        let observer = observer.clone();
        async move { observer.observe(&cx).await }
    }))?;
    let pass = Job::every(interval, "collect", move |cx: JobCtx| {
        let collector = collector.clone();
        async move {
            match cx.until_cancelled(collector.measured_pass()).await {
                Some(passed) => passed,
                None => Ok(()),
            }
        }
    });
    jobs.spawn(pass.run_at_start())
}

enum Users {
    Endpoints(Table<EndpointRow>),
    Slices(Table<SliceRow>),
}

impl Users {
    async fn wait_initialized(&self, db: &Db) -> Snapshot {
        match self {
            Self::Endpoints(table) => table.wait_initialized(db).await,
            Self::Slices(table) => table.wait_initialized(db).await,
        }
    }

    fn identities(&self, snapshot: &Snapshot) -> HashSet<i64> {
        match self {
            Self::Endpoints(table) => table.all(snapshot).filter_map(|row| row.identity).collect(),
            Self::Slices(table) => table
                .all(snapshot)
                .flat_map(|row| row.identities.iter().copied())
                .collect(),
        }
    }
}

struct Collector {
    users: Users,
    client: Arc<dyn Client>,
    db: Db,
    identities: Table<IdentityRow>,
    /// The last sign of life of each identity, by name.
    signs: Mutex<HashMap<Str, Instant>>,
    metrics: Arc<IdentityMetrics>,
    config: Config,
}

#[derive(Debug, Default)]
struct Counts {
    alive: usize,
    deleted: usize,
}

impl Collector {
    /// Takes every change of an identity for a sign of life.
    async fn observe(&self, cx: &JobCtx) {
        let changes = self.identities.follow(&self.db);
        let mut changes = Box::pin(changes.stream(self.db.clone(), 1000, Duration::ZERO));
        while let Some(Some(batch)) = cx.until_cancelled(changes.next()).await {
            let now = Instant::now();
            let mut signs = self.signs.lock();
            for change in &batch {
                let Some(row) = change.object() else { continue };
                if change.is_delete() {
                    signs.remove(&row.metadata.name);
                } else {
                    signs.insert(row.metadata.name.clone(), now);
                }
            }
        }
    }

    async fn measured_pass(&self) -> Result<(), GcError> {
        self.identities.wait_initialized(&self.db).await;
        self.users.wait_initialized(&self.db).await;
        let began = Instant::now();
        let mut counts = Counts::default();
        let passed = self.pass(&mut counts).await;
        self.metrics.pass(&Pass {
            kind: "crd",
            is_success: passed.is_ok(),
            took: began.elapsed(),
            alive: counts.alive,
            deleted: counts.deleted,
        });
        passed
    }

    async fn pass(&self, counts: &mut Counts) -> Result<(), GcError> {
        let snapshot = self.db.read();
        let used = self.users.identities(&snapshot);
        let timeout = self.config.identity_heartbeat_timeout;
        let now = Instant::now();
        let mut silent = Vec::new();
        {
            let mut signs = self.signs.lock();
            signs.retain(|name, _| {
                self.identities
                    .get(&snapshot, IdentityRow::BY_NAME.key(name))
                    .is_some()
            });
            for row in self.identities.all(&snapshot) {
                let name = &row.metadata.name;
                // A name that is no number is of no identity in use.
                let is_used = name.parse().is_ok_and(|id: i64| used.contains(&id));
                if is_used {
                    signs.insert(name.clone(), now);
                }
                // One that is seen for the first time shows life, also if `observe` has not come to it yet.
                let sign = *signs.entry(name.clone()).or_insert(now);
                if now.duration_since(sign) < timeout {
                    counts.alive += 1;
                } else {
                    silent.push((row.metadata.clone(), row.is_marked));
                }
            }
        }
        let mut window = (Instant::now(), 0);
        let mut rejected = Rejected::default();
        for (identity, is_marked) in silent {
            let done = if is_marked {
                self.limit(&mut window).await;
                let deleted = self.delete(&identity).await;
                deleted.map(|deleted| counts.deleted += usize::from(deleted))
            } else {
                counts.alive += 1;
                self.mark(&identity).await
            };
            if let Err(error) = done {
                rejected.keep(error)?;
            }
        }
        rejected.finish()
    }

    /// Waits until another deletion is allowed.
    async fn limit(&self, (began, count): &mut (Instant, u32)) {
        let interval = self.config.identity_gc_rate_interval;
        if *count >= self.config.identity_gc_rate_limit.max(1) {
            tokio::time::sleep_until(*began + interval).await;
        }
        if began.elapsed() >= interval {
            (*began, *count) = (Instant::now(), 0);
        }
        *count += 1;
    }

    /// Deletes an identity if it is still as it was seen.
    async fn delete(&self, identity: &Reference) -> Result<bool, GcError> {
        let api = Api::<CiliumIdentity>::all(self.client.clone());
        let deleted = delete(
            &api,
            &identity.name,
            &identity.uid,
            &identity.resource_version,
            "",
        )
        .await;
        let deleted = deleted.map_err(|cause| GcError::Delete {
            kind: "CiliumIdentity".to_owned(),
            name: identity.name.to_string(),
            cause: cause.into(),
        })?;
        if deleted {
            tracing::info!(identity = %identity.name, "Deleted unused identity");
        }
        Ok(deleted)
    }

    /// Marks an identity as unused. That another one changed it is a sign of life.
    async fn mark(&self, identity: &Reference) -> Result<(), GcError> {
        match self.annotate(&identity.name).await {
            Ok(()) => Ok(()),
            Err(error) if error.is_conflict() || error.is_not_found() => Ok(()),
            Err(cause) => Err(GcError::Update {
                kind: "CiliumIdentity".to_owned(),
                name: identity.name.to_string(),
                cause: cause.into(),
            }),
        }
    }

    /// Writes the mark. Operators may list and update identities, but neither get nor patch them.
    async fn annotate(&self, name: &str) -> Result<(), ApiError> {
        let kind = CiliumIdentity::kind();
        let options = ListOptions {
            fields: FieldSelector::equal("metadata.name", name),
            ..ListOptions::default()
        };
        let page = self.client.list(&kind, "", &options).await?;
        for object in page.items {
            let mut object = (*object.to_value()?).clone();
            let metadata = &mut object["metadata"];
            if !metadata["annotations"].is_object() {
                metadata["annotations"] = Value::Object(Map::new());
            }
            metadata["annotations"][HEARTBEAT] = Timestamp::now().to_string().into();
            let options = WriteOptions::default();
            self.client
                .update(&kind, "", Subresource::None, object, &options)
                .await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use skep_k8s_memory::testing::TestCluster;
    use statedb::RwTable;

    use super::*;

    /// What marked them may have been another process: a restart forgets its signs of life, and must not take identities for
    /// silent whose changes `observe` has not seen yet.
    #[tokio::test]
    async fn the_first_pass_of_a_process_deletes_no_marked_identity() {
        let cluster = TestCluster::new();
        let definition = skep_k8s_crds::definitions::cilium_identity();
        skep_k8s_crds::register_all(&**cluster.client(), &[definition])
            .await
            .unwrap();
        let identity = serde_json::json!({
            "metadata": { "name": "1000", "annotations": { HEARTBEAT: "2026-06-01T10:00:00Z" } },
            "security-labels": { "k8s:app": "cart" },
        });
        cluster.create(&CiliumIdentity::kind(), identity).await;
        let object = cluster.get(&CiliumIdentity::kind(), "", "1000").await;
        let object: CiliumIdentity = serde_json::from_value(object).unwrap();
        let db = Db::new();
        let identities = RwTable::builder("cilium-identities")
            .primary(IdentityRow::BY_NAME)
            .build(&db)
            .unwrap();
        let endpoints: RwTable<EndpointRow> = RwTable::builder("cilium-endpoints")
            .primary(EndpointRow::BY_NAME)
            .build(&db)
            .unwrap();
        let mut txn = db.write(&[&identities]);
        identities.insert(&mut txn, IdentityRow::new(&object)).unwrap();
        txn.commit();
        let collector = Collector {
            users: Users::Endpoints(endpoints.reader()),
            client: cluster.client().clone(),
            db,
            identities: identities.reader(),
            signs: Mutex::default(),
            metrics: Arc::default(),
            config: <Config as hive::Config>::defaults().unwrap(),
        };

        let mut counts = Counts::default();
        collector.pass(&mut counts).await.unwrap();

        assert_eq!((counts.alive, counts.deleted), (1, 0));
        assert_eq!(cluster.list(&CiliumIdentity::kind()).await.len(), 1);
    }
}
