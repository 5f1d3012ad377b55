// SPDX-License-Identifier: Apache-2.0

//! One remote cluster: connects, reads its configuration, then its values; again when that fails.

mod ttl;

use std::sync::Arc;
use std::time::Duration;

use hive::{Health, JobCtx};
use skep_clustermesh_types::{CiliumClusterConfig, ClusterInfo, ClusterName, Kind, RemoteInfo, keys};
use skep_kvstore_client::{Backend, Client, Event, Watcher, backoff};
use skep_kvstore_store::{StoreRecorder, WatchStoreManager, WatchStoreOptions};
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use crate::connector::Connector;
use crate::directory::ConfigFile;
use crate::error::RemoteError;
use crate::lifecycle::ClusterLifecycle;
use crate::metrics::ClusterMeshMetrics;
use crate::observer::{MeshObserver, RemoteStore, StoreContext, SyncedCallback};
use crate::reservation::Reservations;
use crate::state::RemoteState;
use ttl::Ttl;

const BACKOFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// A connection that lasted so long begins with short pauses again.
const STABLE: Duration = Duration::from_secs(60);
/// How long one attempt to read the configuration of the cluster may take.
const CONFIG_TIMEOUT: Duration = Duration::from_secs(60);
const CONFIG_BACKOFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));
/// How long all of them may take.
const CONFIG_DEADLINE: Duration = Duration::from_secs(180);
/// Time between two looks at a configuration that was read: it changes seldom.
const CONFIG_POLL: Duration = Duration::from_secs(300);
/// Time between two reports of health and metrics.
const REPORT: Duration = Duration::from_secs(1);

/// What all remote clusters have in common.
#[derive(Debug)]
pub(crate) struct Common {
    pub(crate) local: ClusterInfo,
    pub(crate) cache_ttl: Duration,
    pub(crate) connector: Arc<dyn Connector>,
    pub(crate) observers: Vec<Arc<dyn MeshObserver>>,
    pub(crate) lifecycle: Option<Arc<dyn ClusterLifecycle>>,
    pub(crate) reservations: Reservations,
    pub(crate) recorder: Arc<dyn StoreRecorder>,
    pub(crate) metrics: Arc<ClusterMeshMetrics>,
}

/// One remote cluster, for its job.
pub(crate) struct Remote {
    common: Arc<Common>,
    state: Arc<RemoteState>,
    /// The configuration file; `None` when the cluster is to be removed.
    file: watch::Receiver<Option<ConfigFile>>,
    slots: Vec<Slot>,
    ttl: Ttl,
    id: Option<u32>,
    /// How many connections failed in a row.
    attempts: u32,
    health: Health,
}

/// What holds the values of one kind.
struct Slot {
    observer: Arc<dyn MeshObserver>,
    kind: Kind,
    store: Box<dyn RemoteStore>,
}

enum End {
    /// There is another file, or none.
    File,
    /// The remote cluster has another configuration.
    Config,
    Failed(RemoteError),
}

impl Remote {
    pub(crate) fn new(
        common: Arc<Common>,
        state: Arc<RemoteState>,
        file: watch::Receiver<Option<ConfigFile>>,
        health: Health,
    ) -> Self {
        let ttl = Ttl::new(common.cache_ttl);
        let slots = common
            .observers
            .iter()
            .map(|observer| slot(&common, &state, observer));
        Self {
            slots: slots.collect(),
            common,
            state,
            file,
            ttl,
            id: None,
            attempts: 0,
            health,
        }
    }

    /// Reads the cluster until it is removed. When the program stops, this is dropped: nothing is deleted then.
    pub(crate) async fn run(&mut self, cx: &JobCtx) {
        let _ = cx.until_cancelled(self.follow()).await;
    }

    /// Returns when the cluster is removed, and nothing of it is left.
    async fn follow(&mut self) {
        loop {
            let Some(file) = self.file.borrow_and_update().clone() else {
                if self.leave().await {
                    return self.remove().await;
                }
                continue;
            };
            let started = Instant::now();
            let end = self.connect(&file).await;
            self.ttl.lost();
            self.state.disconnected();
            self.report();
            match end {
                End::File | End::Config => self.attempts = 0,
                End::Failed(error) => {
                    if started.elapsed() > STABLE {
                        self.attempts = 0;
                    }
                    self.failed(error);
                    self.pause().await;
                }
            }
        }
    }

    /// Waits until what came from the cluster may be deleted; false if there is a file again.
    async fn leave(&mut self) -> bool {
        let Some(lifecycle) = self.common.lifecycle.clone() else {
            return true;
        };
        let cluster = self.state.name.clone();
        tracing::info!(cluster = %cluster, "Configuration of remote cluster removed");
        self.health.starting("Removed from the configuration");
        tokio::select! {
            () = lifecycle.leaving(&cluster) => true,
            // The sender is gone only when the program stops.
            Ok(_) = self.file.wait_for(Option::is_some) => false,
        }
    }

    /// Deletes all that came from the cluster.
    async fn remove(&mut self) {
        let cluster = &self.state.name;
        match &self.common.lifecycle {
            Some(lifecycle) => lifecycle.removed(cluster).await,
            None => {
                for slot in &mut self.slots {
                    slot.store.drain();
                }
            }
        }
        tracing::info!(cluster = %cluster, "Removed remote cluster");
        if let Some(id) = self.id.take() {
            self.common.reservations.release(id, cluster);
        }
        self.common.metrics.remove(cluster.as_str());
        self.state.removed();
        self.health.close();
    }

    fn failed(&mut self, error: RemoteError) {
        self.attempts = self.attempts.saturating_add(1);
        failed(
            &self.state,
            &self.health,
            "Unable to read a remote cluster",
            error,
        );
        self.report();
    }

    /// Waits before the next connection, or until there is another file.
    async fn pause(&mut self) {
        let pause = backoff(self.attempts, BACKOFF);
        let file = &mut self.file;
        let wait = async move {
            // The sender is gone only when the program stops.
            let _ = timeout(pause, file.changed()).await;
        };
        self.ttl
            .run(&mut self.slots, &self.common, &self.state, wait)
            .await;
        // What is new is looked at next.
        self.file.mark_unchanged();
    }

    /// Connects to the store of the file, and reads it until that ends.
    async fn connect(&mut self, file: &ConfigFile) -> End {
        let backend = match self.backend(file) {
            Ok(backend) => backend,
            Err(error) => return End::Failed(error),
        };
        let options = self.common.connector.client_options(&self.state.name);
        let (client, driver) = Client::new(backend, options);
        self.state.connecting(client.clone());
        self.report();
        tokio::select! {
            end = self.read(&client) => end,
            cause = client.failed() => End::Failed(RemoteError::Connection { cluster: self.state.name.clone(), cause: Box::new(cause) }),
            () = driver.run(hive::CancellationToken::new()) => End::Config,
        }
    }

    fn backend(&self, file: &ConfigFile) -> Result<Arc<dyn Backend>, RemoteError> {
        let cluster = &self.state.name;
        self.common
            .connector
            .connect(cluster, file)
            .map_err(|cause| RemoteError::File {
                cluster: cluster.clone(),
                cause,
            })
    }

    /// Reads the cluster with a new client.
    async fn read(&mut self, client: &Client) -> End {
        let mut file = self.file.clone();
        let (state, health, metrics) = (
            self.state.clone(),
            self.health.clone(),
            self.common.metrics.clone(),
        );
        let getting = async {
            client.wait_connected().await;
            get_config(client, &state).await
        };
        let reporting = async {
            loop {
                tokio::time::sleep(REPORT).await;
                report(&state, &health, &metrics);
            }
        };
        let getting = async {
            tokio::select! {
                config = getting => config.map_err(End::Failed),
                _ = file.changed() => Err(End::File),
                () = reporting => Err(End::Config),
            }
        };
        let config = self
            .ttl
            .run(&mut self.slots, &self.common, &self.state, getting)
            .await;
        match config {
            Ok(config) => self.serve(client, config).await,
            Err(end) => end,
        }
    }

    /// Reads the values of a cluster whose configuration is known.
    async fn serve(&mut self, client: &Client, config: CiliumClusterConfig) -> End {
        self.state.configured(config.clone());
        if let Err(error) = self.accept(&config) {
            return End::Failed(error);
        }
        self.ttl.connected();
        self.state.recovered();
        let cluster = self.state.name.clone();
        let remote = RemoteInfo {
            name: cluster.clone(),
            id: config.id,
            max_connected_clusters: self.common.local.max_connected_clusters,
        };
        tracing::info!(cluster = %cluster, id = config.id, "Connected to remote cluster");
        let is_cached = config.capabilities.cached;
        let prefixes: Vec<String> = self
            .slots
            .iter()
            .map(|slot| slot.kind.prefix(cluster.as_str(), is_cached))
            .collect();
        let mut manager = if config.capabilities.synced_canaries {
            WatchStoreManager::with_canaries(client.clone(), cluster.as_str())
        } else {
            WatchStoreManager::immediate()
        };
        for (slot, prefix) in self.slots.iter_mut().zip(&prefixes) {
            let is_enabled = slot.observer.is_enabled(&config.capabilities);
            if is_enabled {
                slot.store.configure(&remote);
                manager.register(slot.kind.canary(is_cached), slot.store.watch(client, prefix));
            } else {
                slot.store.disable();
            }
            self.state.set_enabled(slot.kind, is_enabled);
        }
        let (state, health, metrics) = (&self.state, &self.health, &self.common.metrics);
        let reporting = async {
            loop {
                report(state, health, metrics);
                tokio::time::sleep(REPORT).await;
            }
        };
        let common = &self.common;
        tokio::select! {
            () = manager.run() => End::Config,
            () = reporting => End::Config,
            () = other_config(client, &cluster, &config) => End::Config,
            () = other_file(&mut self.file, common, state, health) => End::File,
        }
    }

    /// Whether the cluster can be in a mesh with this one: then its id is reserved.
    fn accept(&mut self, config: &CiliumClusterConfig) -> Result<(), RemoteError> {
        let cluster = &self.state.name;
        if let Some(lifecycle) = &self.common.lifecycle {
            lifecycle.configured(cluster, config);
            return Ok(());
        }
        config
            .check(cluster, &self.common.local)
            .map_err(RemoteError::Incompatible)?;
        if self.id == Some(config.id) {
            return Ok(());
        }
        self.common.reservations.reserve(config.id, cluster)?;
        if let Some(old) = self.id.replace(config.id) {
            tracing::warn!(
                cluster = %cluster, old, new = config.id, "Id of remote cluster changed"
            );
            for slot in &mut self.slots {
                slot.store.drain();
            }
            self.common.reservations.release(old, cluster);
        }
        Ok(())
    }

    fn report(&self) {
        report(&self.state, &self.health, &self.common.metrics);
    }
}

fn slot(common: &Common, state: &Arc<RemoteState>, observer: &Arc<dyn MeshObserver>) -> Slot {
    let kind = observer.kind();
    let mut options = WatchStoreOptions::new(state.name.as_str());
    options.recorder = common.recorder.clone();
    let synced = {
        let state = state.clone();
        SyncedCallback(Box::new(move || state.synced(kind)))
    };
    let store = observer.store(StoreContext {
        cluster: state.name.clone(),
        options,
        synced,
    });
    state.add_store(kind, store.status());
    Slot {
        observer: observer.clone(),
        kind,
        store,
    }
}

/// Reads the configuration of a cluster. One that is not there may be written soon: its writer may have restarted.
async fn get_config(client: &Client, state: &RemoteState) -> Result<CiliumClusterConfig, RemoteError> {
    let cluster = &state.name;
    let key = keys::cluster_config(cluster.as_str());
    let deadline = Instant::now() + CONFIG_DEADLINE;
    let (mut pause, longest) = CONFIG_BACKOFF;
    let mut written = None;
    loop {
        let error = match timeout(CONFIG_TIMEOUT, client.get(&key)).await {
            Ok(Ok(Some(item))) => match CiliumClusterConfig::decode(&item.value) {
                Ok(config) => return Ok(config),
                Err(cause) => RemoteError::InvalidConfig {
                    cluster: cluster.clone(),
                    cause: Arc::new(cause),
                },
            },
            Ok(Ok(None)) => RemoteError::NoConfig {
                cluster: cluster.clone(),
            },
            result => RemoteError::ReadConfig {
                cluster: cluster.clone(),
                after: CONFIG_DEADLINE,
                cause: result.ok().and_then(Result::err).map(Box::new),
            },
        };
        let is_new = state.not_configured(&error);
        if Instant::now() + pause > deadline {
            return Err(error);
        }
        if is_new {
            tracing::info!(cluster = %cluster, error = hive::error_chain(&error), "Waiting for cluster configuration");
        }
        // It is read at once when it is written, and now and then if the watch should not work.
        let written = written.get_or_insert_with(|| client.watch_key(&key));
        let _ = timeout(pause, next_value(written)).await;
        pause = (pause * 2).min(longest);
    }
}

/// Returns when the watched key has a value that the watcher has not reported before.
async fn next_value(watcher: &mut Watcher) {
    while !matches!(watcher.next().await, Event::Create(_) | Event::Modify(_)) {}
}

/// Returns when the cluster has another configuration than this one. One that is gone for a moment changes nothing.
async fn other_config(client: &Client, cluster: &ClusterName, config: &CiliumClusterConfig) {
    let key = keys::cluster_config(cluster.as_str());
    loop {
        tokio::time::sleep(CONFIG_POLL).await;
        let item = match timeout(CONFIG_TIMEOUT, client.get(&key)).await {
            Ok(Ok(Some(item))) => item,
            _ => continue,
        };
        match CiliumClusterConfig::decode(&item.value) {
            Ok(now) if now == *config => {}
            Ok(_) => {
                tracing::info!(cluster = %cluster, "Configuration of remote cluster changed");
                return;
            }
            Err(error) => tracing::warn!(
                cluster = %cluster, error = hive::error_chain(&error),
                "Ignoring invalid configuration of remote cluster"
            ),
        }
    }
}

/// Returns when there is another file that makes sense, or none. Another one ends no connection that works.
async fn other_file(
    file: &mut watch::Receiver<Option<ConfigFile>>,
    common: &Common,
    state: &RemoteState,
    health: &Health,
) {
    while file.changed().await.is_ok() {
        let Some(new) = file.borrow_and_update().clone() else {
            break;
        };
        match common.connector.connect(&state.name, &new) {
            Ok(_) => break,
            Err(cause) => {
                let error = RemoteError::File {
                    cluster: state.name.clone(),
                    cause,
                };
                let stays = "Staying connected with the configuration file as it was";
                failed(state, health, stays, error);
            }
        }
    }
}

/// Notes a failure, once: what is degraded is in the log as well.
fn failed(state: &RemoteState, health: &Health, message: &str, error: RemoteError) {
    health.degraded(message, &error);
    state.failed(error);
}

/// Reports how the cluster is. A cluster that has failed stays degraded until it is connected again.
fn report(state: &RemoteState, health: &Health, metrics: &ClusterMeshMetrics) {
    if !state.has_failed() {
        let status = state.status();
        match status.ready {
            true => health.ok("Ready"),
            false => health.starting(format!("{}; {}", status.status, status.synced)),
        }
    }
    metrics.update(state);
}
