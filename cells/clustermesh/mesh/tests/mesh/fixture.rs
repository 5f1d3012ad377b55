// SPDX-License-Identifier: Apache-2.0

//! What the tests have in common.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use hive::{Cell, Hive, Member, Running, Settings, testing as hive_testing};
use parking_lot::Mutex;
use skep_base_metrics::{MetricSet, Registry, exposition};
use skep_clustermesh_mesh::testing::{FakeCluster, StoreConnector, remove_file, write_file};
use skep_clustermesh_mesh::{
    ClusterMesh, ClusterMeshMetrics, Connector, MeshObserver, RemoteClusterStatus, RemoteValue,
    ValueObserver, observe, services,
};
use skep_clustermesh_types::{ClusterName, Identity, IpIdentityPair, Node, RemoteInfo};
use skep_kvstore_client::{Backend, Key};
use skep_loadbalancer_model::Writer;
use tempfile::TempDir;
use tokio_util::task::AbortOnDropHandle;

/// How long is waited for what must happen; most tests have a paused clock.
const PATIENCE: Duration = Duration::from_secs(1200);

/// Writes down what it observes: what there is now, and that something happened.
#[derive(Debug)]
pub(crate) struct Log<V> {
    pub(crate) values: Mutex<BTreeMap<(String, String), Arc<V>>>,
    pub(crate) events: Mutex<Vec<String>>,
}

impl<V> Default for Log<V> {
    fn default() -> Self {
        Self {
            values: Mutex::default(),
            events: Mutex::default(),
        }
    }
}

impl<V> Log<V> {
    /// What there is: `cluster/name`.
    pub(crate) fn names(&self) -> Vec<String> {
        let values = self.values.lock();
        values
            .keys()
            .map(|(cluster, name)| format!("{cluster}/{name}"))
            .collect()
    }

    pub(crate) fn take_events(&self) -> Vec<String> {
        std::mem::take(&mut self.events.lock())
    }
}

impl<V: RemoteValue> ValueObserver<V> for Log<V> {
    fn upsert(&self, cluster: &RemoteInfo, name: &Key, value: &Arc<V>) {
        self.events
            .lock()
            .push(format!("upsert {}@{}/{name}", cluster.name, cluster.id));
        let place = (cluster.name.to_string(), name.to_string());
        self.values.lock().insert(place, value.clone());
    }

    fn delete(&self, cluster: &RemoteInfo, name: &Key) {
        self.events
            .lock()
            .push(format!("delete {}@{}/{name}", cluster.name, cluster.id));
        let place = (cluster.name.to_string(), name.to_string());
        self.values.lock().remove(&place).expect("it was reported");
    }

    fn synced(&self, cluster: &ClusterName) {
        self.events.lock().push(format!("synced {cluster}"));
    }
}

/// The value of a metric, by the line of the exposition that has it.
pub(crate) fn metric(metrics: &ClusterMeshMetrics, line: &str) -> Option<String> {
    let registry = Registry::new(metrics.metrics(), &[]).expect("the names differ");
    let prefix = format!("cilium_clustermesh_{line} ");
    let text = exposition(&registry);
    text.lines()
        .find_map(|line| line.strip_prefix(&prefix).map(str::to_owned))
}

/// A running mesh: local cluster `birch` with id 9.
pub(crate) struct World {
    pub(crate) directory: TempDir,
    pub(crate) connector: Arc<StoreConnector>,
    pub(crate) nodes: Arc<Log<Node>>,
    pub(crate) ips: Arc<Log<IpIdentityPair>>,
    pub(crate) identities: Arc<Log<Identity>>,
    pub(crate) mesh: Arc<ClusterMesh>,
    pub(crate) writer: Writer,
    pub(crate) metrics: Arc<ClusterMeshMetrics>,
    running: Running,
    beats: Mutex<Vec<AbortOnDropHandle<()>>>,
}

impl World {
    pub(crate) async fn start() -> Self {
        Self::start_with(&[], |_| {}).await
    }

    /// A mesh that connects to real etcds.
    pub(crate) async fn start_etcd() -> Self {
        Self::build(&[], |_| {}, false, None).await
    }

    /// Starts with settings, after the directory was filled.
    pub(crate) async fn start_with(args: &[&str], fill: impl FnOnce(&Path)) -> Self {
        Self::build(args, fill, true, None).await
    }

    /// A mesh whose health is a table, as in programs: what is degraded is logged.
    pub(crate) async fn start_with_logged_health(args: &[&str], fill: impl FnOnce(&Path)) -> Self {
        Self::build(args, fill, true, Some(skep_base_health::cell())).await
    }

    async fn build(args: &[&str], fill: impl FnOnce(&Path), is_fake: bool, health: Option<Cell>) -> Self {
        let directory = tempfile::tempdir().expect("there is a folder");
        fill(directory.path());
        let connector = StoreConnector::new();
        let (nodes, ips, identities) = (Arc::default(), Arc::default(), Arc::default());
        let config = format!("--clustermesh-config={}", directory.path().display());
        let all = ["--cluster-id=9", "--cluster-name=birch", config.as_str()]
            .into_iter()
            .chain(args.iter().copied());
        let settings = Settings::new().args(all);
        let fake = is_fake.then(|| connector.clone());
        let hive = hive(fake, &nodes, &ips, &identities);
        let hive = match health {
            Some(cell) => hive.with(cell),
            None => hive,
        };
        let running = hive_testing::start_with(hive, settings).await;
        Self {
            directory,
            connector,
            nodes,
            ips,
            identities,
            mesh: running.get().expect("it is provided"),
            writer: running.get().expect("it is provided"),
            metrics: running.get().expect("it is provided"),
            running,
            beats: Mutex::default(),
        }
    }

    /// A remote cluster that can be reached, but is not configured yet.
    pub(crate) async fn cluster(&self, name: &str, id: u32) -> Arc<FakeCluster> {
        let (cluster, store) = FakeCluster::in_memory(name, id).await;
        self.connector.set(name, Arc::new(store));
        let cluster = Arc::new(cluster);
        self.keep_beating(&cluster);
        cluster
    }

    /// A remote cluster of that store, as the mesh reaches it by `via`.
    pub(crate) async fn cluster_via(
        &self,
        name: &str,
        id: u32,
        store: Arc<dyn Backend>,
        via: Arc<dyn Backend>,
    ) -> Arc<FakeCluster> {
        let cluster = Arc::new(FakeCluster::in_store(name, id, store).await);
        self.connector.set(name, via);
        self.keep_beating(&cluster);
        cluster
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "a test has no jobs; the task ends with the world"
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

    pub(crate) fn stop_beating(&self) {
        self.beats.lock().clear();
    }

    /// Configures a remote cluster, or changes its file.
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

    pub(crate) fn status(&self, name: &str) -> Option<RemoteClusterStatus> {
        self.mesh.status().into_iter().find(|status| status.name == name)
    }

    pub(crate) fn is_ready(&self, name: &str) -> bool {
        self.status(name).is_some_and(|status| status.ready)
    }

    #[track_caller]
    pub(crate) fn ready(&self, name: &str) -> impl Future<Output = ()> {
        eventually("the cluster is ready", || self.is_ready(name))
    }

    /// Backends of the mesh: `namespace/name address@cluster`.
    pub(crate) fn backends(&self) -> Vec<String> {
        let txn = self.writer.db().read();
        let rows = self.writer.backends();
        let texts = rows
            .all(&txn)
            .map(|row| format!("{} {}@{}", row.service, row.params.address, row.params.cluster_id));
        texts.collect()
    }

    /// Health of a component, as a text.
    pub(crate) fn health(&self, id: &str) -> Option<String> {
        self.running.health().get(id).map(|entry| format!("{entry:?}"))
    }

    pub(crate) async fn stop(self) {
        hive_testing::stop(self.running).await;
    }
}

fn hive(
    connector: Option<Arc<StoreConnector>>,
    nodes: &Arc<Log<Node>>,
    ips: &Arc<Log<IpIdentityPair>>,
    identities: &Arc<Log<Identity>>,
) -> Hive {
    let observers: Vec<Arc<dyn MeshObserver>> = vec![
        observe::<Node>(nodes.clone()),
        observe::<IpIdentityPair>(ips.clone()),
        observe::<Identity>(identities.clone()),
    ];
    let [first, second, third] = [observers[0].clone(), observers[1].clone(), observers[2].clone()];
    let fakes = Cell::module("fakes", "Fakes of the test")
        .provide(move || Member(first.clone()))
        .provide(move || Member(second.clone()))
        .provide(move || Member(third.clone()));
    let fakes = match connector {
        Some(connector) => fakes.provide(move || connector.clone() as Arc<dyn Connector>),
        None => fakes,
    };
    Hive::new([
        fakes,
        statedb::cell(),
        skep_base_settings::cell(),
        skep_loadbalancer_model::cell(),
        skep_base_settings::cluster::cell(),
        skep_kvstore_etcd::cell(),
        skep_clustermesh_mesh::cell(),
        services::cell(),
    ])
    .root::<Arc<ClusterMesh>>()
    .root::<Arc<ClusterMeshMetrics>>()
    .root::<Writer>()
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

pub(crate) fn node(cluster: &FakeCluster, name: &str) -> Vec<u8> {
    let node = Node {
        name: name.to_owned(),
        cluster: cluster.name.clone(),
        cluster_id: cluster.id,
        ..Node::default()
    };
    node.encode().expect("it is JSON")
}

pub(crate) fn ip(cluster: &FakeCluster, ip: &str, offset: u32) -> Vec<u8> {
    let pair = IpIdentityPair {
        ip: Some(ip.parse().expect("it is an address")),
        id: (cluster.id << 16) + offset,
        ..IpIdentityPair::default()
    };
    pair.encode().expect("it is JSON")
}
