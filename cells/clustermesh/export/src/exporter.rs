// SPDX-License-Identifier: Apache-2.0

//! Tables → keys of the key-value store.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use hive::{Cfg, Health, Job, JobCtx, Jobs, Params, SpawnError};
use skep_base_settings::cluster::ClusterSettings;
use skep_clustermesh_types::Kind;
use skep_k8s_client::Client as KubernetesClient;
use skep_k8s_types::slim::Str;
use skep_kvstore_client::Client;
use skep_kvstore_store::{StoreMetrics, SyncStore, SyncStoreOptions};
use statedb::{Db, Snapshot, WatchSet};

use crate::source::{Dirty, Source};

/// Names after which an exporter lets others work.
const CHUNK: usize = 256;
/// Most faults that health names.
const NAMED: usize = 10;

/// What every exporter requires.
#[derive(Params)]
pub(crate) struct ExporterParams {
    pub(crate) cluster: Cfg<ClusterSettings>,
    pub(crate) kvstore: Client,
    pub(crate) kubernetes: Arc<dyn KubernetesClient>,
    pub(crate) metrics: Option<Arc<StoreMetrics>>,
    pub(crate) db: Db,
    pub(crate) jobs: Jobs,
}

/// A kind that this program publishes; each cell adds one to the group.
#[derive(Clone)]
pub struct Exported {
    kind: Kind,
    store: SyncStore,
}

impl Exported {
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Whether all objects of the first list, and the canary, are written.
    pub fn is_synced(&self) -> bool {
        self.store.is_synced()
    }

    /// Waits until [`is_synced`](Self::is_synced).
    pub async fn wait_synced(&self) {
        self.store.wait_synced().await;
    }
}

impl fmt::Debug for Exported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Exported")
            .field("kind", &self.kind)
            .field("is_synced", &self.is_synced())
            .finish_non_exhaustive()
    }
}

/// Objects that are not published, or not as they are now.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Unpublished(String);

pub(crate) struct Exporter {
    exported: Exported,
    params: ExporterParams,
}

impl Exporter {
    pub(crate) fn new(kind: Kind, params: ExporterParams) -> Self {
        let info = params.cluster.info();
        let cluster = info.name.as_str();
        let mut options = SyncStoreOptions::new(cluster, &kind.prefix(cluster, false))
            .canary_prefix(kind.canary(false))
            .adopt();
        if let Some(metrics) = &params.metrics {
            options = options.recorder(metrics.clone());
        }
        Self {
            exported: Exported {
                kind,
                store: SyncStore::new(params.kvstore.clone(), options),
            },
            params,
        }
    }

    pub(crate) fn exported(&self) -> Exported {
        self.exported.clone()
    }

    /// Publishes what `source` makes, in a job. Without a source only the canary is written: readers wait for that of every
    /// kind.
    pub(crate) fn start<S: Source>(
        &self,
        source: impl Fn(&Db) -> Option<S> + Send + Sync + 'static,
    ) -> Result<(), SpawnError> {
        let ExporterParams {
            kvstore,
            kubernetes,
            db,
            jobs,
            ..
        } = &self.params;
        if !kvstore.is_enabled() || !kubernetes.is_enabled() {
            return Ok(());
        }
        let (store, db) = (self.exported.store.clone(), db.clone());
        jobs.spawn(Job::once("export", move |cx: JobCtx| {
            let (store, db, source) = (store.clone(), db.clone(), source(&db));
            async move {
                let publish = async {
                    match source {
                        Some(source) => {
                            Publisher::new(source, store.clone(), cx.health.clone())
                                .run(&db)
                                .await
                        }
                        None => {
                            cx.health.ok("Synchronization is disabled");
                            store.retain(|_| false);
                            store.set_synced();
                        }
                    }
                };
                let work = async { tokio::join!(publish, store.run()) };
                cx.until_cancelled(work).await;
            }
        }))
    }
}

struct Publisher<S> {
    source: S,
    store: SyncStore,
    health: Health,
    is_complete: bool,
    faults: BTreeMap<Str, String>,
    reported: Option<Vec<String>>,
}

impl<S: Source> Publisher<S> {
    fn new(source: S, store: SyncStore, health: Health) -> Self {
        Self {
            source,
            store,
            health,
            is_complete: false,
            faults: BTreeMap::new(),
            reported: None,
        }
    }

    async fn run(mut self, db: &Db) {
        self.health.starting("Waiting for the first lists");
        // An earlier run may have published names that are gone.
        let mut dirty = Dirty {
            all: true,
            ..Dirty::default()
        };
        loop {
            let snapshot = db.read();
            let mut watches = WatchSet::new();
            self.source.watch(&snapshot, &mut watches);
            self.source.changed(&snapshot, &mut dirty);
            self.publish(&snapshot, std::mem::take(&mut dirty)).await;
            if !self.is_complete && self.source.is_complete(&snapshot) {
                self.is_complete = true;
                self.store.set_synced();
            }
            self.report();
            watches.wait(Duration::ZERO).await;
        }
    }

    async fn publish(&mut self, snapshot: &Snapshot, dirty: Dirty) {
        let mut names = dirty.names;
        if dirty.all {
            names.extend(self.source.names(snapshot));
            self.store.retain(|name| names.contains(name));
            self.faults.retain(|name, _| names.contains(name));
        }
        for (at, name) in names.iter().enumerate() {
            if at % CHUNK == CHUNK - 1 {
                tokio::task::yield_now().await;
            }
            match self.source.value(snapshot, name) {
                Ok(Some(value)) => self.store.upsert(name, value),
                Ok(None) => self.store.delete(name),
                Err(error) => {
                    let text = hive::error_chain(&error);
                    self.faults.insert(name.clone(), format!("`{name}`: {text}"));
                    continue;
                }
            }
            self.faults.remove(name);
        }
    }

    fn report(&mut self) {
        if !self.is_complete {
            return;
        }
        let mut faults = self.source.faults();
        faults.extend(self.faults.values().cloned());
        if self.reported.as_ref() == Some(&faults) {
            return;
        }
        if faults.is_empty() {
            self.health.ok("All objects are published");
        } else {
            let mut text = faults[..faults.len().min(NAMED)].join("; ");
            if faults.len() > NAMED {
                text.push_str(&format!("; and {} more", faults.len() - NAMED));
            }
            let message = format!("{} objects are not published as they are", faults.len());
            self.health.degraded(message, &Unpublished(text));
        }
        self.reported = Some(faults);
    }
}
