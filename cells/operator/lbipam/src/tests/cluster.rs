// SPDX-License-Identifier: Apache-2.0

//! An API server with our definitions, a client of it that fails on demand, and the cell.

use std::sync::Arc;
use std::time::Duration;

use hive::{Cell, Hive, Settings};
use serde_json::{Value, json};
use skep_k8s_client::Client;
use skep_k8s_client::testing::{Fault, FaultyClient, Verb, until};
use skep_k8s_crds::definitions;
use skep_k8s_memory::testing::api_server;
use skep_k8s_memory::{ApiServer, Gvr, in_process_client};

pub(super) struct Cluster {
    pub(super) api: ApiServer,
    pub(super) client: Arc<FaultyClient>,
}

/// The API server does not accept writes now.
pub(super) fn unavailable() -> Fault {
    Fault::rejected(503, "ServiceUnavailable")
}

pub(super) fn pools() -> Gvr {
    Gvr::new("cilium.io", "v2", "ciliumloadbalancerippools")
}

pub(super) fn services() -> Gvr {
    Gvr::new("", "v1", "services")
}

impl Cluster {
    pub(super) fn new() -> Self {
        let api = api_server();
        let definition = definitions::cilium_load_balancer_ip_pool().to_object();
        let crds = Gvr::new("apiextensions.k8s.io", "v1", "customresourcedefinitions");
        api.create(&crds, "", definition, &Default::default()).unwrap();
        let client = FaultyClient::new(Arc::new(in_process_client(&api)));
        Self { api, client }
    }

    pub(super) fn refused(&self) -> usize {
        self.client.count_failed(Verb::Patch)
    }

    /// How often all services were listed.
    pub(super) fn service_lists(&self) -> usize {
        let requests = self.client.requests();
        let lists = requests.iter().filter(|request| request.verb == Verb::List);
        lists.filter(|request| request.plural == "services").count()
    }

    pub(super) async fn operator(&self, flags: &[&str]) -> hive::Running {
        let client: Arc<dyn Client> = self.client.clone();
        let surroundings = Cell::module("test", "Client").provide(move || client.clone());
        let hive = Hive::new([
            surroundings,
            skep_base_settings::service_ipam_cell(),
            crate::cell(),
        ]);
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
            skep_k8s_memory::Subresource::None,
            patch,
        );
    }

    pub(super) fn patch_pool(&self, name: &str, patch: Value) {
        self.patch(&pools(), "", name, skep_k8s_memory::Subresource::None, patch);
    }

    pub(super) fn patch(
        &self,
        gvr: &Gvr,
        namespace: &str,
        name: &str,
        part: skep_k8s_memory::Subresource,
        patch: Value,
    ) {
        let patch = skep_k8s_memory::Patch::Merge(patch);
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
        until(expected, move || read(self))
    }

    #[track_caller]
    pub(super) fn shows(&self, name: &'static str, expected: &str) -> impl Future<Output = ()> {
        self.wait(expected.to_owned(), move |cluster| cluster.shown(name))
    }

    pub(super) async fn settle(&self) {
        self.client.settle(Duration::from_secs(5)).await;
    }
}
