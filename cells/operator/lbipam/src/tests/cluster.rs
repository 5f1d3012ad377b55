// SPDX-License-Identifier: Apache-2.0

//! An API server with our definitions, a client of it that fails on demand, and the cell.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use hive::{Cell, Hive, Settings};
use parking_lot::Mutex;
use serde_json::{Value, json};
use skep_k8s_apiserver::{ApiServer, Gvr, Manner, Registry, Rows, Tracker, in_process_client};
use skep_k8s_client::{
    ApiError, Client, ListOptions, Patch, RawPage, RawWatch, Status, Subresource, WatchOptions, WriteOptions,
};
use skep_k8s_crds::definitions;
use skep_k8s_types::{Kind, RawObject};

/// Called with the name of an object before its status is written.
type Interloper = Arc<dyn Fn(&str) + Send + Sync>;

pub(super) struct Cluster {
    pub(super) api: ApiServer,
    pub(super) control: Arc<Control>,
}

/// What the client does besides passing requests on.
#[derive(Default)]
pub(super) struct Control {
    /// Writes of status are refused.
    pub(super) refuses: AtomicBool,
    /// Writes of the status of this object are refused.
    pub(super) refuses_one: Mutex<Option<String>>,
    pub(super) interloper: Mutex<Option<Interloper>>,
    pub(super) refused: AtomicUsize,
    pub(super) writes: Mutex<Vec<String>>,
    pub(super) managers: Mutex<Vec<String>>,
    pub(super) service_lists: AtomicUsize,
}

struct Controlled {
    inner: Arc<dyn Client>,
    control: Arc<Control>,
}

#[async_trait]
impl Client for Controlled {
    fn is_enabled(&self) -> bool {
        true
    }

    async fn kinds(&self) -> Result<Vec<Kind>, ApiError> {
        self.inner.kinds().await
    }

    async fn list(&self, kind: &Kind, namespace: &str, options: &ListOptions) -> Result<RawPage, ApiError> {
        if kind.plural == "services" {
            self.control.service_lists.fetch_add(1, Ordering::SeqCst);
        }
        self.inner.list(kind, namespace, options).await
    }

    async fn watch(
        &self,
        kind: &Kind,
        namespace: &str,
        options: &WatchOptions,
    ) -> Result<RawWatch, ApiError> {
        self.inner.watch(kind, namespace, options).await
    }

    async fn get(&self, kind: &Kind, namespace: &str, name: &str) -> Result<RawObject, ApiError> {
        self.inner.get(kind, namespace, name).await
    }

    async fn patch(
        &self,
        kind: &Kind,
        namespace: &str,
        name: &str,
        part: Subresource,
        patch: &Patch,
        options: &WriteOptions,
    ) -> Result<RawObject, ApiError> {
        let control = &self.control;
        let is_one = control.refuses_one.lock().as_deref() == Some(name);
        if is_one || control.refuses.load(Ordering::SeqCst) {
            control.refused.fetch_add(1, Ordering::SeqCst);
            return Err(ApiError::Status(Status::new(
                503,
                "ServiceUnavailable",
                "not now",
            )));
        }
        let interloper = control.interloper.lock().clone();
        if let Some(interloper) = interloper {
            interloper(name);
        }
        let written = self
            .inner
            .patch(kind, namespace, name, part, patch, options)
            .await;
        if written.is_ok() {
            control.writes.lock().push(name.to_owned());
            control.managers.lock().push(options.field_manager.clone());
        }
        written
    }
}

pub(super) fn pools() -> Gvr {
    Gvr::new("cilium.io", "v2", "ciliumloadbalancerippools")
}

pub(super) fn services() -> Gvr {
    Gvr::new("", "v1", "services")
}

impl Cluster {
    pub(super) fn new() -> Self {
        let rows = Rows::new(&statedb::Db::new()).unwrap();
        let api = ApiServer::new(
            Tracker::new(rows, 1000, false),
            Registry::builtin(),
            Manner::Real(skep_k8s_apiserver::Settings::default()),
        );
        let definition = definitions::cilium_load_balancer_ip_pool().to_object();
        let crds = Gvr::new("apiextensions.k8s.io", "v1", "customresourcedefinitions");
        api.create(&crds, "", definition, &Default::default()).unwrap();
        Self {
            api,
            control: Arc::default(),
        }
    }

    pub(super) fn client(&self) -> Arc<dyn Client> {
        Arc::new(Controlled {
            inner: Arc::new(in_process_client(&self.api)),
            control: self.control.clone(),
        })
    }

    /// An operator with the cell.
    pub(super) async fn operator(&self, flags: &[&str]) -> hive::Running {
        let client = self.client();
        let surroundings = Cell::module("test", "Client").provide(move || client.clone());
        let hive = Hive::new([surroundings, crate::cell()]);
        hive::testing::start_with(hive, Settings::new().args(flags.iter().copied())).await
    }

    pub(super) fn pool(&self, name: &str, spec: Value) {
        let object = json!({ "metadata": { "name": name }, "spec": spec });
        self.api
            .create(&pools(), "", object, &Default::default())
            .unwrap();
    }

    pub(super) fn service(&self, name: &str, change: impl FnOnce(&mut Value)) {
        let mut object = json!({
            "metadata": { "name": name, "annotations": {}, "labels": {} },
            "spec": { "type": "LoadBalancer", "selector": { "app": name }, "ports": [{ "port": 80 }] },
        });
        change(&mut object);
        self.api
            .create(&services(), "default", object, &Default::default())
            .unwrap();
    }

    pub(super) fn patch_service(&self, name: &str, patch: Value) {
        self.patch(
            &services(),
            "default",
            name,
            skep_k8s_apiserver::Subresource::None,
            patch,
        );
    }

    pub(super) fn patch_pool(&self, name: &str, patch: Value) {
        self.patch(&pools(), "", name, skep_k8s_apiserver::Subresource::None, patch);
    }

    pub(super) fn patch(
        &self,
        gvr: &Gvr,
        namespace: &str,
        name: &str,
        part: skep_k8s_apiserver::Subresource,
        patch: Value,
    ) {
        let patch = skep_k8s_apiserver::Patch::Merge(patch);
        self.api
            .patch(gvr, namespace, name, part, &patch, &Default::default())
            .unwrap();
    }

    pub(super) fn delete(&self, gvr: &Gvr, namespace: &str, name: &str) {
        self.api
            .delete(gvr, namespace, name, &Default::default())
            .unwrap();
    }

    /// `addresses status reason: message` of a service.
    pub(super) fn shown(&self, name: &str) -> String {
        let service = self.api.get(&services(), "default", name).unwrap();
        let empty = Vec::new();
        let ingress = service["status"]["loadBalancer"]["ingress"]
            .as_array()
            .unwrap_or(&empty);
        let addresses: Vec<&str> = ingress.iter().filter_map(|entry| entry["ip"].as_str()).collect();
        let conditions = service["status"]["conditions"].as_array().unwrap_or(&empty);
        let condition = conditions
            .iter()
            .find(|condition| condition["type"] == crate::SATISFIED)
            .map(|condition| {
                let text = |field: &str| condition[field].as_str().unwrap().to_owned();
                format!(" {} {}: {}", text("status"), text("reason"), text("message"))
            });
        format!("[{}]{}", addresses.join(" "), condition.unwrap_or_default())
    }

    /// `type=status reason message` of the conditions of a pool.
    pub(super) fn conditions(&self, name: &str) -> Vec<String> {
        let pool = self.api.get(&pools(), "", name).unwrap();
        let conditions = pool["status"]["conditions"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        let text = |condition: &Value| {
            let text = |field: &str| condition[field].as_str().unwrap().to_owned();
            let kind = text("type").replace("cilium.io/", "");
            format!("{kind}={} {} {}", text("status"), text("reason"), text("message"))
        };
        conditions.iter().map(text).collect()
    }

    #[track_caller]
    pub(super) fn wait<T: PartialEq + std::fmt::Debug>(
        &self,
        expected: T,
        read: impl Fn(&Self) -> T,
    ) -> impl Future<Output = ()> {
        let place = std::panic::Location::caller();
        async move {
            // Time is paused: it passes only while nothing else can be done.
            for _ in 0..2000 {
                if read(self) == expected {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            panic!("{place}: got {:?}, expected {expected:?}", read(self));
        }
    }

    #[track_caller]
    pub(super) fn shows(&self, name: &'static str, expected: &str) -> impl Future<Output = ()> {
        self.wait(expected.to_owned(), move |cluster| cluster.shown(name))
    }

    /// Waits until nothing is written any more.
    pub(super) async fn settle(&self) {
        loop {
            let before = self.control.writes.lock().len();
            tokio::time::sleep(Duration::from_secs(5)).await;
            if self.control.writes.lock().len() == before {
                return;
            }
        }
    }
}
