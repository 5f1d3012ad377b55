// SPDX-License-Identifier: Apache-2.0

//! An API server with our definitions, a client of it that fails on demand, remote clusters, and the cells.

use std::sync::Arc;
use std::time::Duration;

use hive::{Cell, Hive, Running, Settings};
use parking_lot::Mutex;
use serde_json::{Value, json};
use skep_base_metrics::workqueue::WorkqueueMetrics;
use skep_clustermesh_mesh::Connector;
use skep_clustermesh_mesh::testing::{FakeCluster, StoreConnector, remove_file, write_file};
use skep_clustermesh_types::{Capabilities, Kind as Values, ServiceExport};
use skep_k8s_client::testing::{Fault, FaultyClient, until};
use skep_k8s_client::{Client, Status};
use skep_k8s_crds::definitions;
use skep_k8s_memory::testing::api_server;
use skep_k8s_memory::{ApiServer, Gvr, in_process_client};
use skep_kvstore_client::Backend;
use tempfile::TempDir;
use tokio_util::task::AbortOnDropHandle;

pub(super) struct World {
    pub(super) api: ApiServer,
    directory: TempDir,
    connector: Arc<StoreConnector>,
    pub(super) client: Arc<FaultyClient>,
    beats: Mutex<Vec<AbortOnDropHandle<()>>>,
}

pub(super) fn denied() -> Fault {
    Fault::Rejected(Status::new(403, "Forbidden", "no rights"))
}

pub(super) fn imports() -> Gvr {
    Gvr::new("multicluster.x-k8s.io", "v1beta1", "serviceimports")
}

pub(super) fn exports() -> Gvr {
    Gvr::new("multicluster.x-k8s.io", "v1beta1", "serviceexports")
}

pub(super) fn services() -> Gvr {
    Gvr::new("", "v1", "services")
}

pub(super) fn slices() -> Gvr {
    Gvr::new("discovery.k8s.io", "v1", "endpointslices")
}

pub(super) fn namespaces() -> Gvr {
    Gvr::new("", "v1", "namespaces")
}

impl World {
    /// A cluster with namespace `shop`.
    pub(super) fn new() -> Self {
        let world = Self::empty();
        world.create(&namespaces(), "", json!({ "metadata": { "name": "shop" } }));
        world
    }

    /// A cluster without namespace `shop`.
    pub(super) fn empty() -> Self {
        let world = Self::bare();
        let crds = Gvr::new("apiextensions.k8s.io", "v1", "customresourcedefinitions");
        for definition in [definitions::service_import(), definitions::service_export()] {
            world.create(&crds, "", definition.to_object());
        }
        world
    }

    pub(super) fn bare() -> Self {
        let api = api_server();
        Self {
            client: FaultyClient::new(Arc::new(in_process_client(&api))),
            api,
            directory: tempfile::tempdir().unwrap(),
            connector: StoreConnector::new(),
            beats: Mutex::default(),
        }
    }

    /// An operator of cluster `birch` with the cells.
    pub(super) async fn operator(&self, flags: &[&str]) -> Running {
        hive::testing::start_with(self.hive(), self.settings(flags)).await
    }

    /// As [`operator`](Self::operator), with a look at the metrics.
    pub(super) async fn measured_operator(&self, flags: &[&str]) -> (Running, Arc<crate::mcsapi::Metrics>) {
        let hive = self.hive().root::<Arc<crate::mcsapi::Metrics>>();
        let running = hive::testing::start_with(hive, self.settings(flags)).await;
        let metrics = running.get().unwrap();
        (running, metrics)
    }

    /// As [`operator`](Self::operator), with the metrics of its queues.
    pub(super) async fn queued_operator(&self, flags: &[&str]) -> (Running, Arc<WorkqueueMetrics>) {
        let hive = self.hive().root::<Arc<WorkqueueMetrics>>();
        let running = hive::testing::start_with(hive, self.settings(flags)).await;
        let metrics = running.get().unwrap();
        (running, metrics)
    }

    fn settings(&self, flags: &[&str]) -> Settings {
        let config = format!("--clustermesh-config={}", self.directory.path().display());
        let flags = ["--cluster-id=9", "--cluster-name=birch", &config]
            .into_iter()
            .chain(flags.iter().copied());
        Settings::new().args(flags)
    }

    /// Why an operator does not start.
    pub(super) async fn start_error(&self, flags: &[&str]) -> String {
        let plan = match self.hive().plan(self.settings(flags)) {
            Ok(plan) => plan,
            Err(report) => return report.to_string(),
        };
        match plan.build().unwrap().start().await {
            Ok(running) => {
                running.stop().await.unwrap();
                "none".to_owned()
            }
            Err(error) => hive::error_chain(&error).to_string(),
        }
    }

    fn hive(&self) -> Hive {
        let client: Arc<dyn Client> = self.client.clone();
        let connector = self.connector.clone();
        let surroundings = Cell::module("test", "Client and connector")
            .provide(move || client.clone())
            .provide(move || connector.clone() as Arc<dyn Connector>)
            .config::<skep_k8s_crds::Config>()
            .config::<skep_clustermesh_export::ExportSettings>()
            .config::<skep_clustermesh_types::ServiceSettings>();
        Hive::new([
            surroundings,
            skep_base_settings::cluster::cell(),
            skep_kvstore_etcd::cell(),
            skep_clustermesh_mesh::operator_cell(),
            skep_base_metrics::workqueue::cell(),
            crate::mcsapi::cell(),
            crate::mirror::cell(),
        ])
    }

    /// A remote cluster that can be reached, but is not configured yet.
    pub(super) async fn cluster(&self, name: &str, id: u32) -> Arc<FakeCluster> {
        let (cluster, store) = FakeCluster::in_memory(name, id).await;
        let cluster = Arc::new(cluster);
        cluster.configure(capabilities(Some(true))).await;
        self.reach(&cluster, Arc::new(store));
        cluster
    }

    pub(super) fn reach(&self, cluster: &Arc<FakeCluster>, store: Arc<dyn Backend>) {
        self.connector.set(&cluster.name, store);
        self.keep_beating(cluster);
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

    pub(super) fn join(&self, name: &str) {
        write_file(self.directory.path(), name, name);
    }

    pub(super) fn leave(&self, name: &str) {
        remove_file(self.directory.path(), name);
    }

    pub(super) fn create(&self, gvr: &Gvr, namespace: &str, object: Value) {
        self.api
            .create(gvr, namespace, object, &Default::default())
            .unwrap();
    }

    pub(super) fn patch(&self, gvr: &Gvr, namespace: &str, name: &str, patch: Value) {
        let patch = skep_k8s_memory::Patch::Merge(patch);
        let part = skep_k8s_memory::Subresource::None;
        self.api
            .patch(gvr, namespace, name, part, &patch, &Default::default())
            .unwrap();
    }

    pub(super) fn delete(&self, gvr: &Gvr, namespace: &str, name: &str) {
        self.api
            .delete(gvr, namespace, name, &Default::default())
            .unwrap();
    }

    /// An object of namespace `shop`; null if it is not there.
    pub(super) fn get(&self, gvr: &Gvr, name: &str) -> Value {
        self.api
            .get(gvr, "shop", name)
            .map_or(Value::Null, |object| (*object).clone())
    }

    pub(super) fn has(&self, gvr: &Gvr, name: &str) -> bool {
        !self.get(gvr, name).is_null()
    }

    /// Names of slices of a service of namespace `shop`, sorted.
    pub(super) fn slices_of(&self, service: &str) -> Vec<Value> {
        let list = self
            .api
            .list(&slices(), Some("shop"), &Default::default())
            .unwrap();
        let is_of = |slice: &Value| slice["metadata"]["labels"]["kubernetes.io/service-name"] == service;
        let items = list.items.iter().map(|item| (**item).clone());
        items.filter(is_of).collect()
    }

    /// Service `shop/<name>` with a slice.
    pub(super) fn service(&self, name: &str, spec: Value) {
        let object = json!({ "metadata": { "name": name }, "spec": spec });
        self.create(&services(), "shop", object);
    }

    pub(super) fn slice(&self, name: &str, service: &str, addresses: &[&str]) {
        let endpoints = addresses.iter().map(|address| {
            json!({
                "addresses": [address],
                "conditions": { "ready": true },
                "hostname": "h",
                "nodeName": "n1",
                "targetRef": { "kind": "Pod", "name": "p", "namespace": "shop" },
            })
        });
        let object = json!({
            "metadata": { "name": name, "labels": { "kubernetes.io/service-name": service } },
            "addressType": "IPv4",
            "endpoints": endpoints.collect::<Vec<_>>(),
            "ports": [{ "name": "http", "port": 8080, "protocol": "TCP", "appProtocol": "http" }],
        });
        self.create(&slices(), "shop", object);
    }

    pub(super) fn export(&self, name: &str, spec: Value) {
        let object = json!({ "metadata": { "name": name }, "spec": spec });
        self.create(&exports(), "shop", object);
    }

    /// `type=status reason` of the conditions of an object.
    pub(super) fn conditions(&self, gvr: &Gvr, name: &str) -> String {
        let object = self.get(gvr, name);
        let conditions = object["status"]["conditions"].as_array().cloned();
        let text = |condition: Value| {
            let text = |field: &str| condition[field].as_str().unwrap_or_default().to_owned();
            format!("{}={} {}", text("type"), text("status"), text("reason"))
        };
        let mut texts: Vec<String> = conditions.into_iter().flatten().map(text).collect();
        texts.sort();
        texts.join(", ")
    }

    /// Clusters in the status of an import.
    pub(super) fn clusters(&self, name: &str) -> String {
        let import = self.get(&imports(), name);
        let clusters = import["status"]["clusters"].as_array().cloned();
        let names = clusters.into_iter().flatten();
        let names: Vec<String> = names
            .filter_map(|cluster| cluster["cluster"].as_str().map(str::to_owned))
            .collect();
        names.join(" ")
    }

    /// Numbers of the ports of an import.
    pub(super) fn ports(&self, name: &str) -> Vec<i64> {
        let import = self.get(&imports(), name);
        let ports = import["spec"]["ports"].as_array().cloned();
        let numbers = ports.into_iter().flatten();
        numbers.filter_map(|port| port["port"].as_i64()).collect()
    }

    #[track_caller]
    pub(super) fn until<T: PartialEq + std::fmt::Debug>(
        &self,
        expected: T,
        read: impl Fn(&Self) -> T,
    ) -> impl Future<Output = ()> {
        until(expected, move || read(self))
    }

    pub(super) async fn settle(&self) {
        self.client.settle(Duration::from_secs(20)).await;
    }
}

/// Capabilities of a cluster that publishes exports, or does not know them.
pub(super) fn capabilities(exports: Option<bool>) -> Capabilities {
    Capabilities {
        synced_canaries: true,
        max_connected_clusters: 255,
        service_exports_enabled: exports,
        ..Capabilities::default()
    }
}

/// An export of `shop/<name>`.
pub(super) fn remote_export(cluster: &FakeCluster, name: &str, port: i32) -> ServiceExport {
    let mut export = ServiceExport::default();
    export.cluster = cluster.name.clone();
    export.namespace = "shop".to_owned();
    export.name = name.to_owned();
    export.export_creation_timestamp = Some("2026-01-02T03:04:05Z".parse().unwrap());
    export.ports = Some(vec![skep_clustermesh_types::ExportPort {
        name: format!("p{port}"),
        protocol: "TCP".to_owned(),
        app_protocol: None,
        port,
    }]);
    export.kind = "ClusterSetIP".to_owned();
    export.session_affinity = "None".to_owned();
    export.ip_families = vec!["IPv4".to_owned()];
    export
}

pub(super) async fn publish(cluster: &FakeCluster, export: &ServiceExport) {
    let value = export.encode().unwrap();
    cluster
        .put(Values::ServiceExports, &export.key_name(), value)
        .await;
}

/// What is not healthy, as a text.
pub(super) fn faults(running: &Running) -> String {
    let health = running.health();
    let entries = health.entries();
    let degraded = entries.iter().map(|entry| format!("{entry:?}"));
    degraded
        .filter(|text| text.contains("Degraded"))
        .collect::<Vec<_>>()
        .join("\n")
}
