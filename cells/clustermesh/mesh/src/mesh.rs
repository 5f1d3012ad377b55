// SPDX-License-Identifier: Apache-2.0

//! The mesh: all remote clusters that are configured.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use hive::{Health, Job, JobCtx, Jobs, SpawnError};
use parking_lot::Mutex;
use skep_base_api_types::RemoteClusterStatus;
use skep_clustermesh_types::{ClusterInfo, ClusterName, Kind};
use skep_kvstore_store::StoreRecorder;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::connector::Connector;
use crate::directory::{ConfigFile, Directory, Scan};
use crate::error::{DirectoryError, SyncTimeout};
use crate::lifecycle::ClusterLifecycle;
use crate::metrics::ClusterMeshMetrics;
use crate::observer::MeshObserver;
use crate::remote::{Common, Remote};
use crate::reservation::Reservations;
use crate::state::RemoteState;

/// Pause before a directory that cannot be read is tried again.
const RETRY: Duration = Duration::from_secs(2);

/// The remote clusters. Disabled without a cluster id, a directory of configurations or observers: then there are none.
pub struct ClusterMesh(Option<Mesh>);

struct Mesh {
    common: Arc<Common>,
    directory: PathBuf,
    sync_timeout: Duration,
    jobs: Jobs,
    health: Health,
    remotes: Mutex<BTreeMap<ClusterName, Handle>>,
    is_scanned: watch::Sender<bool>,
}

#[derive(Clone)]
struct Handle {
    state: Arc<RemoteState>,
    file: Arc<watch::Sender<Option<ConfigFile>>>,
}

/// What a mesh is made of.
#[derive(Debug)]
pub struct ClusterMeshOptions {
    pub local: ClusterInfo,
    /// Directory with the configurations of remote clusters.
    pub directory: PathBuf,
    /// How long services of a cluster are used that cannot be reached; zero: without limit.
    pub cache_ttl: Duration,
    /// How long [`ClusterMesh::wait_synced`] waits.
    pub sync_timeout: Duration,
    pub connector: Arc<dyn Connector>,
    pub observers: Vec<Arc<dyn MeshObserver>>,
    pub lifecycle: Option<Arc<dyn ClusterLifecycle>>,
    pub recorder: Arc<dyn StoreRecorder>,
    pub metrics: Arc<ClusterMeshMetrics>,
    /// Where the jobs of clusters run.
    pub jobs: Jobs,
    /// Below it, each cluster has its health.
    pub health: Health,
}

impl ClusterMesh {
    pub fn disabled() -> Arc<Self> {
        Arc::new(Self(None))
    }

    /// A mesh. Nothing is read until [`run`](Self::run).
    pub fn new(options: ClusterMeshOptions) -> Arc<Self> {
        let common = Common {
            local: options.local,
            cache_ttl: options.cache_ttl,
            connector: options.connector,
            observers: options.observers,
            lifecycle: options.lifecycle,
            reservations: Reservations::default(),
            recorder: options.recorder,
            metrics: options.metrics,
        };
        Arc::new(Self(Some(Mesh {
            common: Arc::new(common),
            directory: options.directory,
            sync_timeout: options.sync_timeout,
            jobs: options.jobs,
            health: options.health,
            remotes: Mutex::default(),
            is_scanned: watch::Sender::new(false),
        })))
    }

    pub fn is_enabled(&self) -> bool {
        self.0.is_some()
    }

    /// Status of the remote clusters, sorted by name.
    pub fn status(&self) -> Vec<RemoteClusterStatus> {
        let remotes = self.0.as_ref().map(|mesh| mesh.remotes.lock().clone());
        let remotes = remotes.into_iter().flatten();
        remotes.map(|(_, handle)| handle.state.status()).collect()
    }

    /// Waits until these kinds of values were complete once, for all clusters that are configured at the call, and have taken
    /// effect; but not longer than `clustermesh-sync-timeout`. Clusters that are removed meanwhile do not count. Returns
    /// at once if there is no mesh.
    ///
    /// # Errors
    ///
    /// [`SyncTimeout`]: waiters continue without it.
    pub async fn wait_synced(&self, kinds: &[Kind]) -> Result<(), SyncTimeout> {
        let Some(mesh) = &self.0 else { return Ok(()) };
        match timeout(mesh.sync_timeout, mesh.synced(kinds)).await {
            Ok(()) => Ok(()),
            Err(_) => Err(SyncTimeout {
                after: mesh.sync_timeout,
                clusters: mesh.missing(kinds),
            }),
        }
    }

    /// Waits until the directory was read, and returns the clusters that are configured. Returns at once if there is no mesh.
    pub async fn configured(&self) -> Vec<ClusterName> {
        let Some(mesh) = &self.0 else {
            return Vec::new();
        };
        mesh.scanned().await;
        mesh.remotes.lock().keys().cloned().collect()
    }

    /// Reads the directory and the clusters, in jobs of their own, until the program stops.
    pub async fn run(self: Arc<Self>, cx: JobCtx) {
        let Some(mesh) = &self.0 else { return };
        let _ = cx.until_cancelled(mesh.follow(&self, &cx.health)).await;
    }

    /// Whether the cluster's job is over: it was removed, and not configured again.
    fn retire(&self, name: &ClusterName, file: &watch::Receiver<Option<ConfigFile>>) -> bool {
        let Some(mesh) = &self.0 else { return true };
        let mut remotes = mesh.remotes.lock();
        // Files are changed below this lock.
        if file.borrow().is_some() {
            return false;
        }
        remotes.remove(name);
        mesh.common.metrics.remotes.clusters.set(remotes.len() as f64);
        true
    }
}

impl Mesh {
    async fn follow(&self, mesh: &Arc<ClusterMesh>, health: &Health) {
        loop {
            let local = self.common.local.name.clone();
            match Directory::open(self.directory.clone(), local) {
                Ok(directory) => {
                    if let Err(error) = self.follow_directory(mesh, health, directory).await {
                        degraded(health, &error);
                    }
                }
                Err(error) => degraded(health, &error),
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    async fn follow_directory(
        &self,
        mesh: &Arc<ClusterMesh>,
        health: &Health,
        mut directory: Directory,
    ) -> Result<(), DirectoryError> {
        // What was known before a directory could not be read any more is still there, or is gone.
        directory.expect(self.known());
        let mut last_faults = Vec::new();
        loop {
            let scan = directory.scan().await?;
            let clusters = scan.clusters.len();
            let faults = scan.faults.clone();
            self.apply(mesh, scan);
            self.is_scanned.send_replace(true);
            if faults.is_empty() {
                health.ok(format!("{clusters} remote clusters configured"));
            } else if faults != last_faults {
                let files = faults.clone();
                degraded(health, &DirectoryError::Files { files });
            }
            last_faults = faults;
            directory.changed().await;
        }
    }

    fn known(&self) -> BTreeMap<ClusterName, ConfigFile> {
        let remotes = self.remotes.lock();
        let known = remotes
            .iter()
            .filter_map(|(name, handle)| Some((name.clone(), handle.file.borrow().clone()?)));
        known.collect()
    }

    fn apply(&self, mesh: &Arc<ClusterMesh>, scan: Scan) {
        let mut remotes = self.remotes.lock();
        for (name, handle) in &*remotes {
            if !scan.clusters.contains_key(name) {
                handle.file.send_if_modified(|file| file.take().is_some());
            }
        }
        for (name, new) in scan.clusters {
            if let Some(handle) = remotes.get(&name) {
                handle.file.send_if_modified(|file| {
                    let is_other = file.as_ref().is_none_or(|file| file.text != new.text);
                    *file = Some(new);
                    is_other
                });
                continue;
            }
            let kinds = self.common.observers.iter().map(|observer| observer.kind());
            let state = Arc::new(RemoteState::new(name.clone(), kinds));
            let handle = Handle {
                state: state.clone(),
                file: Arc::new(watch::Sender::new(Some(new))),
            };
            match self.spawn(mesh, &handle) {
                Ok(()) => {
                    tracing::info!(cluster = %name, "Found configuration of remote cluster");
                    remotes.insert(name, handle);
                }
                // The program stops.
                Err(error) => tracing::debug!(cluster = %name, %error, "Not connecting to remote cluster"),
            }
        }
        self.common.metrics.remotes.clusters.set(remotes.len() as f64);
    }

    /// Adds the job of a cluster.
    fn spawn(&self, mesh: &Arc<ClusterMesh>, handle: &Handle) -> Result<(), SpawnError> {
        let name = handle.state.name.clone();
        let (mesh, handle, common) = (mesh.clone(), handle.clone(), self.common.clone());
        let health = self.health.scope(name.as_str());
        let job = Job::once("remote-etcd", move |cx: JobCtx| {
            let (mesh, handle, common, health) =
                (mesh.clone(), handle.clone(), common.clone(), health.clone());
            async move { run(&mesh, &handle, common, health, &cx).await }
        });
        self.jobs.spawn(job.instance(name.as_str()))
    }

    async fn scanned(&self) {
        // The sender lives as long as this.
        let _ = self
            .is_scanned
            .subscribe()
            .wait_for(|is_scanned| *is_scanned)
            .await;
    }

    async fn synced(&self, kinds: &[Kind]) {
        self.scanned().await;
        let states: Vec<Arc<RemoteState>> = self
            .remotes
            .lock()
            .values()
            .map(|handle| handle.state.clone())
            .collect();
        for state in states {
            state.wait_synced(kinds).await;
        }
        for observer in self
            .common
            .observers
            .iter()
            .filter(|observer| kinds.contains(&observer.kind()))
        {
            observer.flushed().await;
        }
    }

    fn missing(&self, kinds: &[Kind]) -> Vec<(ClusterName, Vec<Kind>)> {
        let remotes = self.remotes.lock();
        let missing = remotes
            .iter()
            .map(|(name, handle)| (name.clone(), handle.state.missing(kinds)));
        missing.filter(|(_, kinds)| !kinds.is_empty()).collect()
    }
}

/// Reads a cluster until it is removed for good.
async fn run(mesh: &ClusterMesh, handle: &Handle, common: Arc<Common>, health: Health, cx: &JobCtx) {
    let file = handle.file.subscribe();
    loop {
        let (common, state) = (common.clone(), handle.state.clone());
        let mut remote = Remote::new(common, state, file.clone(), health.clone());
        remote.run(cx).await;
        if cx.token.is_cancelled() || mesh.retire(&handle.state.name, &file) {
            return;
        }
        // It was configured again while it was removed.
        handle.state.renewed();
    }
}

/// What is degraded is in the log as well.
fn degraded(health: &Health, error: &DirectoryError) {
    health.degraded("Unable to use configurations of remote clusters", error);
}

impl fmt::Debug for ClusterMesh {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let remotes = self
            .0
            .as_ref()
            .map(|mesh| mesh.remotes.lock().keys().cloned().collect::<Vec<_>>());
        f.debug_tuple("ClusterMesh").field(&remotes).finish()
    }
}
