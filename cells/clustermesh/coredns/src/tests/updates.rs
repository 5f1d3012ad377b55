// SPDX-License-Identifier: Apache-2.0

//! The update against an API server.

use std::sync::Arc;

use async_trait::async_trait;
use hive::{Cell, Hive, Settings};
use parking_lot::Mutex;
use serde_json::{Value, json};
use skep_k8s_client::{
    ApiError, Client, DisabledClient, ListOptions, Patch, RawPage, RawWatch, Status, Subresource,
    WatchOptions, WriteOptions,
};
use skep_k8s_memory::{ApiServer, Gvr, Mode, Registry, Rows, Tracker, in_process_client};
use skep_k8s_types::{Kind, RawObject};

use crate::{CoreDns, Outcome};

const COREFILE: &str = ".:53 {\n    kubernetes cluster.local {\n    }\n}\n";

/// Called before an object is written: plural, and whether it is a dry run.
type Interloper = Box<dyn FnMut(&str, bool) -> Result<(), ApiError> + Send>;

struct Cluster {
    api: ApiServer,
    interloper: Arc<Mutex<Option<Interloper>>>,
}

struct Controlled {
    inner: Arc<dyn Client>,
    interloper: Arc<Mutex<Option<Interloper>>>,
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
        if let Some(interloper) = &mut *self.interloper.lock() {
            interloper(&kind.plural, options.dry_run)?;
        }
        self.inner
            .patch(kind, namespace, name, part, patch, options)
            .await
    }
}

fn config_maps() -> Gvr {
    Gvr::new("", "v1", "configmaps")
}

fn deployments() -> Gvr {
    Gvr::new("apps", "v1", "deployments")
}

impl Cluster {
    fn new() -> Self {
        let rows = Rows::new(&statedb::Db::new()).unwrap();
        let tracker = Tracker::new(rows, 1000, false);
        let mode = Mode::Real(skep_k8s_memory::Settings::default());
        Self {
            api: ApiServer::new(tracker, Registry::builtin(), mode),
            interloper: Arc::default(),
        }
    }

    fn with_coredns(corefile: &str, image: &str) -> Self {
        let cluster = Self::new();
        let config_map = json!({ "metadata": { "name": "coredns" }, "data": { "Corefile": corefile } });
        let labels = json!({ "k8s-app": "kube-dns" });
        let deployment = json!({
            "metadata": { "name": "coredns" },
            "spec": {
                "selector": { "matchLabels": labels },
                "template": {
                    "metadata": { "labels": labels },
                    "spec": { "containers": [{ "name": "coredns", "image": image }] },
                },
            },
        });
        cluster.create(&config_maps(), config_map);
        cluster.create(&deployments(), deployment);
        cluster
    }

    fn create(&self, gvr: &Gvr, object: Value) {
        self.api
            .create(gvr, "kube-system", object, &Default::default())
            .unwrap();
    }

    fn intercept(&self, interloper: impl FnMut(&str, bool) -> Result<(), ApiError> + Send + 'static) {
        *self.interloper.lock() = Some(Box::new(interloper));
    }

    fn client(&self) -> Arc<dyn Client> {
        Arc::new(Controlled {
            inner: Arc::new(in_process_client(&self.api)),
            interloper: self.interloper.clone(),
        })
    }

    async fn configure(&self) -> Result<Outcome, String> {
        configure(self.client()).await
    }

    fn corefile(&self) -> String {
        let object = self.api.get(&config_maps(), "kube-system", "coredns").unwrap();
        object["data"]["Corefile"].as_str().unwrap().to_owned()
    }

    fn is_restarted(&self) -> bool {
        let object = self.api.get(&deployments(), "kube-system", "coredns").unwrap();
        let annotations = &object["spec"]["template"]["metadata"]["annotations"];
        annotations["clustermesh.cilium.io/autoPatchedAt"].is_string()
    }
}

async fn configure(client: Arc<dyn Client>) -> Result<Outcome, String> {
    let surroundings = Cell::module("test", "Client").provide(move || client.clone());
    let hive = Hive::new([
        surroundings,
        Cell::module("config", "Configuration").config::<crate::Config>(),
    ]);
    let hive = hive.root::<(Arc<dyn Client>, hive::Cfg<crate::Config>)>();
    let running = hive::testing::start_with(hive, Settings::new()).await;
    let (client, config) = running
        .get::<(Arc<dyn Client>, hive::Cfg<crate::Config>)>()
        .unwrap();
    let coredns = CoreDns::new(client, (*config).clone());
    let configured = coredns.configure().await;
    running.stop().await.unwrap();
    configured.map_err(|error| hive::error_chain(&error).to_string())
}

fn denied() -> ApiError {
    ApiError::Status(Status::new(403, "Forbidden", "no"))
}

#[tokio::test(start_paused = true)]
async fn configures_once() {
    let cluster = Cluster::with_coredns(COREFILE, "coredns:1.12.2");

    assert_eq!(cluster.configure().await, Ok(Outcome::Changed));

    assert!(cluster.corefile().contains("multicluster clusterset.local"));
    assert!(cluster.is_restarted());
    cluster.intercept(|plural, _| panic!("writes {plural} again"));
    assert_eq!(cluster.configure().await, Ok(Outcome::Unchanged));
}

#[tokio::test(start_paused = true)]
async fn a_change_of_another_writer_is_kept() {
    let cluster = Cluster::with_coredns(COREFILE, "coredns:1.12.2");
    let (api, mut done) = (cluster.api.clone(), false);
    cluster.intercept(move |plural, _| {
        if plural == "configmaps" && !std::mem::replace(&mut done, true) {
            let text = COREFILE.replace("    }", "        ttl 7\n    }");
            let patch = skep_k8s_memory::Patch::Merge(json!({ "data": { "Corefile": text } }));
            let part = skep_k8s_memory::Subresource::None;
            api.patch(
                &config_maps(),
                "kube-system",
                "coredns",
                part,
                &patch,
                &Default::default(),
            )
            .unwrap();
        }
        Ok(())
    });

    assert_eq!(cluster.configure().await, Ok(Outcome::Changed));

    let corefile = cluster.corefile();
    assert!(
        corefile.contains("multicluster clusterset.local\n        ttl 7"),
        "{corefile}"
    );
}

#[tokio::test(start_paused = true)]
async fn nothing_is_changed_if_coredns_cannot_be_restarted() {
    let cluster = Cluster::with_coredns(COREFILE, "coredns:1.12.2");
    cluster.intercept(|plural, _| {
        if plural == "deployments" {
            Err(denied())
        } else {
            Ok(())
        }
    });

    let error = cluster.configure().await.unwrap_err();

    assert_eq!(error, "cannot restart Deployment `kube-system/coredns`: no");
    assert_eq!(cluster.corefile(), COREFILE);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_changed_while_the_deployment_is_paused() {
    let cluster = Cluster::with_coredns(COREFILE, "coredns:latest");
    let pause = |is_paused: bool| {
        let patch = skep_k8s_memory::Patch::Merge(json!({ "spec": { "paused": is_paused } }));
        let (part, options) = (skep_k8s_memory::Subresource::None, Default::default());
        let api = &cluster.api;
        api.patch(&deployments(), "kube-system", "coredns", part, &patch, &options)
            .unwrap();
    };
    pause(true);

    let error = cluster.configure().await.unwrap_err();

    assert_eq!(error, "Deployment `kube-system/coredns`: it is paused");
    assert_eq!(cluster.corefile(), COREFILE);
    pause(false);
    assert_eq!(cluster.configure().await, Ok(Outcome::Changed));
}

#[tokio::test(start_paused = true)]
async fn a_restart_is_retried() {
    let cluster = Cluster::with_coredns(COREFILE, "coredns:1.12.2");
    let mut failures = 2;
    cluster.intercept(move |plural, is_dry_run| {
        if plural == "deployments" && !is_dry_run && failures > 0 {
            failures -= 1;
            return Err(ApiError::Status(Status::new(
                503,
                "ServiceUnavailable",
                "not now",
            )));
        }
        Ok(())
    });

    assert_eq!(cluster.configure().await, Ok(Outcome::Changed));

    assert!(cluster.is_restarted());
}

#[tokio::test(start_paused = true)]
async fn errors_name_what_is_wrong() {
    let error = configure(Arc::new(DisabledClient)).await.unwrap_err();
    assert_eq!(
        error,
        "CoreDNS cannot be configured without a Kubernetes API server"
    );

    let error = Cluster::new().configure().await.unwrap_err();
    assert_eq!(
        error,
        "cannot read ConfigMap `kube-system/coredns`: configmaps \"coredns\" not found"
    );

    let error = Cluster::with_coredns(COREFILE, "coredns:1.11.3")
        .configure()
        .await;
    assert_eq!(
        error.unwrap_err(),
        "Deployment `kube-system/coredns`: image `coredns:1.11.3` is too old: CoreDNS 1.12.2 or later is required"
    );

    let error = Cluster::with_coredns(". {\n}", "coredns:1.12.2")
        .configure()
        .await;
    assert_eq!(
        error.unwrap_err(),
        "ConfigMap `kube-system/coredns`: the Corefile has no line `kubernetes … cluster.local … {`"
    );

    let cluster = Cluster::with_coredns(COREFILE, "coredns:1.12.2");
    cluster.intercept(|plural, _| {
        if plural == "configmaps" {
            Err(denied())
        } else {
            Ok(())
        }
    });
    assert_eq!(
        cluster.configure().await.unwrap_err(),
        "cannot update ConfigMap `kube-system/coredns`: no"
    );
    assert!(!cluster.is_restarted());
}

#[tokio::test(start_paused = true)]
async fn the_program_ends_when_coredns_is_configured() {
    let cluster = Cluster::with_coredns(COREFILE, "coredns:1.12.2");
    let client = cluster.client();
    let surroundings = Cell::module("test", "Client").provide(move || client.clone());
    let hive = Hive::new([surroundings, crate::exit_cell(), crate::cell()]);

    let started = hive.plan(Settings::new()).unwrap().build().unwrap().start().await;

    // It may end before the start is over.
    if let Ok(running) = started {
        assert!(!running.wait().await.is_failure());
        running.stop().await.unwrap();
    }
    assert!(cluster.is_restarted());
}

#[test]
fn settings_are_checked() {
    let fault = |argument: &str| {
        let cell = Cell::module("config", "Configuration").config::<crate::Config>();
        let reader = Cell::module("reader", "Reads").run(|_: hive::Cfg<crate::Config>| ());
        let planned = Hive::new([cell, reader]).plan(Settings::new().args([argument]));
        planned.map(drop).unwrap_err().to_string()
    };

    assert!(fault("--coredns-namespace=").contains("it must not be empty"));
    for zone in ["", "a b", "a..b", "{"] {
        let fault = fault(&format!("--coredns-clusterset-domain={zone}"));
        assert!(fault.contains("is not a domain name"), "{fault}");
    }
}
