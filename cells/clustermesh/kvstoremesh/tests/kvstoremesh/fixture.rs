// SPDX-License-Identifier: Apache-2.0

//! What the tests have in common.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hive::{Cell, Health, Hive, Jobs, Running, Settings, SpawnError, testing as hive_testing};
use parking_lot::Mutex;
use skep_clustermesh_kvstoremesh::{ApiConfig, HealthConfig, KvstoreMeshMetrics, Listening, Readiness};
use skep_clustermesh_mesh::testing::{FakeCluster, StoreConnector, remove_file, write_file};
use skep_clustermesh_mesh::{ClusterMesh, Connector, RemoteClusterStatus};
use skep_clustermesh_types::{Capabilities, EndpointSlicesExportMode, Kind, keys};
use skep_kvstore_client::memory::Memory;
use skep_kvstore_client::{
    Backend, Client, ClientKind, ClientOptions, KeyRange, KeyValue, RangeRequest, RateLimit,
};
use skep_kvstore_etcd::KvstoreConfig;
use tempfile::TempDir;
use tokio_util::task::AbortOnDropHandle;

/// How long is waited for what must happen; most tests have a paused clock.
const PATIENCE: Duration = Duration::from_secs(1200);

/// What outlives a program: the own store, the directory, and the remote clusters.
#[derive(Clone)]
pub(crate) struct Place {
    pub(crate) local: Arc<dyn Backend>,
    pub(crate) directory: Arc<TempDir>,
    pub(crate) connector: Arc<StoreConnector>,
    beats: Arc<Mutex<Vec<AbortOnDropHandle<()>>>>,
}

impl Place {
    pub(crate) fn new(local: Arc<dyn Backend>) -> Self {
        Self {
            local,
            directory: Arc::new(tempfile::tempdir().expect("there is a folder")),
            connector: StoreConnector::new(),
            beats: Arc::default(),
        }
    }

    /// A store in memory, and a place around it.
    pub(crate) fn in_memory() -> (Memory, Self) {
        let store = Memory::new();
        (store.clone(), Self::new(Arc::new(store)))
    }

    /// A remote cluster that can be reached, but is not configured yet.
    pub(crate) async fn cluster(&self, name: &str, id: u32) -> Arc<FakeCluster> {
        let store: Arc<dyn Backend> = Arc::new(Memory::new());
        self.cluster_via(name, id, store.clone(), store).await
    }

    /// A remote cluster of that store, which is reached by `via`. It publishes all kinds.
    pub(crate) async fn cluster_via(
        &self,
        name: &str,
        id: u32,
        store: Arc<dyn Backend>,
        via: Arc<dyn Backend>,
    ) -> Arc<FakeCluster> {
        let cluster = Arc::new(FakeCluster::in_store(name, id, store).await);
        cluster.configure(everything()).await;
        self.connector.set(name, via);
        self.keep_beating(&cluster);
        cluster
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "a test has no jobs; the task ends with the place"
    )]
    fn keep_beating(&self, cluster: &Arc<FakeCluster>) {
        let cluster = cluster.clone();
        let beat = tokio::spawn(async move {
            loop {
                tokio::time::sleep(Duration::from_secs(30)).await;
                cluster.beat().await;
            }
        });
        self.beats.lock().push(AbortOnDropHandle::new(beat));
    }

    pub(crate) fn join(&self, name: &str) {
        self.write(name, name);
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        write_file(self.directory.path(), name, text);
    }

    /// Removes the configuration of a remote cluster.
    pub(crate) fn leave(&self, name: &str) {
        remove_file(self.directory.path(), name);
    }

    /// The keys of the own store below a prefix.
    pub(crate) async fn items(&self, prefix: &str) -> Vec<KeyValue> {
        let request = RangeRequest::new(KeyRange::prefix(prefix));
        self.local.range(request).await.expect("it is read").items
    }

    /// The copied values by their keys.
    pub(crate) async fn values(&self) -> BTreeMap<String, Bytes> {
        let items = self.items("cilium/cache/").await.into_iter();
        items.map(|item| (item.key.to_string(), item.value)).collect()
    }

    pub(crate) async fn keys(&self, prefix: &str) -> Vec<String> {
        let items = self.items(prefix).await.into_iter();
        items.map(|item| item.key.to_string()).collect()
    }

    pub(crate) async fn item(&self, key: &str) -> Option<KeyValue> {
        self.items(key).await.into_iter().find(|item| &*item.key == key)
    }

    /// Waits until the copied values of all clusters are these.
    #[track_caller]
    pub(crate) fn copied(&self, expected: BTreeMap<String, Bytes>) -> impl Future<Output = ()> {
        let (place, caller) = (self.clone(), std::panic::Location::caller());
        async move {
            let wait = async {
                while place.values().await != expected {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            };
            if tokio::time::timeout(PATIENCE, wait).await.is_err() {
                let found = place.values().await;
                let missing: Vec<_> = expected
                    .iter()
                    .filter(|(key, value)| found.get(*key) != Some(*value))
                    .collect();
                let stale: Vec<_> = found.keys().filter(|key| !expected.contains_key(*key)).collect();
                panic!("{caller}: missing {missing:?}, stale {stale:?}");
            }
        }
    }
}

/// A running kvstoremesh of the local cluster `birch` with id 9.
pub(crate) struct World {
    pub(crate) place: Place,
    pub(crate) mesh: Arc<ClusterMesh>,
    pub(crate) readiness: Arc<Readiness>,
    pub(crate) metrics: Arc<KvstoreMeshMetrics>,
    pub(crate) running: Running,
}

impl World {
    /// A program with an own store in memory.
    pub(crate) async fn start() -> Self {
        Self::start_at(Place::in_memory().1, &[]).await
    }

    pub(crate) async fn start_at(place: Place, args: &[&str]) -> Self {
        let via = place.local.clone();
        Self::start_via(place, via, args).await
    }

    /// A program that reaches the own store by `via`.
    pub(crate) async fn start_via(place: Place, via: Arc<dyn Backend>, args: &[&str]) -> Self {
        let hive = hive(via, Some(place.connector.clone()));
        Self::start_hive(place, hive, args).await
    }

    /// A program that reaches the own store by `via`, with its health in a table, as programs have it: what is degraded is
    /// logged.
    pub(crate) async fn start_with_logged_health(place: Place, via: Arc<dyn Backend>) -> Self {
        let hive = hive(via, Some(place.connector.clone()));
        let hive = hive.with(Cell::group([statedb::cell(), skep_base_health::cell()]));
        Self::start_hive(place, hive, &[]).await
    }

    /// A program that reaches remote clusters in real etcds.
    pub(crate) async fn start_etcd(place: Place) -> Self {
        let hive = hive(place.local.clone(), None);
        Self::start_hive(place, hive, &[]).await
    }

    async fn start_hive(place: Place, hive: Hive, args: &[&str]) -> Self {
        let running = hive_testing::start_with(hive, settings(place.directory.path(), args)).await;
        Self {
            mesh: running.get().expect("it is provided"),
            readiness: running.get().expect("it is provided"),
            metrics: running.get().expect("it is provided"),
            place,
            running,
        }
    }

    pub(crate) fn status(&self, name: &str) -> Option<RemoteClusterStatus> {
        self.mesh.status().into_iter().find(|status| status.name == name)
    }

    #[track_caller]
    pub(crate) fn ready(&self, name: &str) -> impl Future<Output = ()> {
        eventually("the cluster is ready", || {
            self.status(name).is_some_and(|status| status.ready)
        })
    }

    pub(crate) async fn stop(self) -> Place {
        hive_testing::stop(self.running).await;
        self.place
    }
}

fn settings(directory: &Path, args: &[&str]) -> Settings {
    let config = format!("--clustermesh-config={}", directory.display());
    let all = [
        "--cluster-id=9",
        "--cluster-name=birch",
        "--api-serve-addr=localhost:0",
        "--health-port=0",
        config.as_str(),
    ];
    Settings::new().args(all.into_iter().chain(args.iter().copied()))
}

/// A client of the own store, with the settings of a real one.
fn client(backend: Arc<dyn Backend>, jobs: &Jobs, health: &Health) -> Result<Client, SpawnError> {
    let options = ClientOptions {
        rate: RateLimit {
            qps: 0,
            bootstrap_qps: None,
            max_inflight: 0,
        },
        ..ClientOptions::new("etcd", ClientKind::Full)
    };
    let (client, driver) = Client::new(backend, options);
    skep_kvstore_client::cell::spawn(jobs, health, &client, driver)?;
    Ok(client)
}

fn hive(backend: Arc<dyn Backend>, connector: Option<Arc<StoreConnector>>) -> Hive {
    let fakes = Cell::module("kvstore-client", "Client of the own store")
        .config::<KvstoreConfig>()
        .provide(move |jobs: Jobs, health: Health| client(backend.clone(), &jobs, &health));
    let fakes = match connector {
        Some(connector) => fakes.provide(move || connector.clone() as Arc<dyn Connector>),
        None => fakes,
    };
    Hive::new([
        fakes,
        skep_base_settings::cluster::cell(),
        skep_clustermesh_kvstoremesh::cell(),
        skep_clustermesh_kvstoremesh::election(),
        skep_clustermesh_kvstoremesh::leader(),
        skep_clustermesh_kvstoremesh::api(),
        skep_clustermesh_kvstoremesh::health(),
    ])
    .root::<Arc<ClusterMesh>>()
    .root::<Arc<Readiness>>()
    .root::<Arc<KvstoreMeshMetrics>>()
    .root::<Arc<Listening<ApiConfig>>>()
    .root::<Arc<Listening<HealthConfig>>>()
}

#[track_caller]
pub(crate) fn eventually<T: Fn() -> bool>(what: &str, is_true: T) -> impl Future<Output = ()> + use<T> {
    let caller = std::panic::Location::caller();
    let what = what.to_owned();
    async move {
        let wait = async {
            while !is_true() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        if tokio::time::timeout(PATIENCE, wait).await.is_err() {
            panic!("{caller}: not within {PATIENCE:?}: {what}");
        }
    }
}

/// What a cluster publishes that publishes all kinds.
pub(crate) fn everything() -> Capabilities {
    Capabilities {
        synced_canaries: true,
        max_connected_clusters: 255,
        service_exports_enabled: Some(true),
        endpoint_slices_export_mode: EndpointSlicesExportMode::ServicesAndEndpointSlices,
        ..Capabilities::default()
    }
}

/// The keys of the canaries of a copy, sorted.
pub(crate) fn canaries(cluster: &str) -> Vec<String> {
    let mut canaries: Vec<String> = Kind::ALL
        .into_iter()
        .map(|kind| keys::canary(cluster, kind, true))
        .collect();
    canaries.sort_unstable();
    canaries
}

/// Copied keys and values, of names `kind name=value`.
pub(crate) fn copies(cluster: &str, values: &[(Kind, &str, &str)]) -> BTreeMap<String, Bytes> {
    let copy = |(kind, name, value): &(Kind, &str, &str)| {
        (
            kind.key(cluster, true, name),
            Bytes::copy_from_slice(value.as_bytes()),
        )
    };
    values.iter().map(copy).collect()
}
