// SPDX-License-Identifier: Apache-2.0

//! The cell against an API server.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use hive::{Cell, Hive, Jobs, Running, Settings, testing};
use serde_json::{Value, json};
use skep_base_settings::cluster::ClusterSettings;
use skep_base_settings::identity::IdentityConfig;
use skep_identity::{IdentityRange, NumericIdentity};
use skep_identity_labels::LabelFilter;
use skep_k8s_client::testing::{Fault, FaultyClient, Verb};
use skep_k8s_client::{Client, DeleteOptions, ListOptions, Subresource};
use skep_k8s_memory::testing::TestCluster;
use skep_k8s_types::slim::CiliumIdentity;
use skep_k8s_types::{Kind, Resource};
use skep_operator_gc::HEARTBEAT;

use crate::World;
use crate::cell::create;
use crate::metrics::IdentityMetrics;

const FLAGS: &[&str] = &[
    "--identity-management-mode=operator",
    "--identity-allocation-mode=crd",
];

struct Cluster {
    cluster: TestCluster,
    client: Arc<FaultyClient>,
}

impl Cluster {
    async fn new() -> Self {
        let cluster = TestCluster::new();
        let definitions = [skep_k8s_crds::definitions::cilium_identity()];
        skep_k8s_crds::register_all(&**cluster.client(), &definitions)
            .await
            .unwrap();
        cluster.namespace("shop").await;
        let cluster = Self {
            client: FaultyClient::new(cluster.client().clone()),
            cluster,
        };
        let account = json!({"metadata": {"name": "cart"}});
        cluster.create(&Kind::SERVICE_ACCOUNT, "shop", account).await;
        cluster
    }

    async fn start(&self, flags: &[&str]) -> Running {
        let client: Arc<dyn Client> = self.client.clone();
        let client = Cell::module("test", "Client")
            .config::<IdentityConfig>()
            .config::<ClusterSettings>()
            .provide(move || client.clone());
        let settings = Settings::new().args(flags.iter().copied());
        testing::start_with(Hive::new([crate::cell(), client]), settings).await
    }

    async fn create(&self, kind: &Kind, namespace: &str, mut object: Value) {
        object["metadata"]["namespace"] = namespace.into();
        self.cluster.create(kind, object).await;
    }

    async fn pod(&self, name: &str, app: &str) {
        let object = json!({
            "metadata": {"name": name, "labels": {"app": app, "pod-template-hash": name}},
            "spec": {"serviceAccountName": "cart", "containers": [{"name": "main", "image": "main"}]},
        });
        self.create(&Kind::POD, "shop", object).await;
    }

    async fn patch(&self, kind: &Kind, namespace: &str, name: &str, part: Subresource, patch: Value) {
        match part {
            Subresource::Status => {
                let status = patch["status"].clone();
                self.cluster.patch_status(kind, namespace, name, status).await;
            }
            _ => self.cluster.patch(kind, namespace, name, patch).await,
        }
    }

    /// Id and labels of all identities.
    async fn identities(&self) -> BTreeMap<u32, Value> {
        let kind = CiliumIdentity::kind();
        let options = ListOptions::default();
        let list = self.client.inner().list(&kind, "", &options).await.unwrap();
        let objects = list.items.iter().map(|object| object.to_value().unwrap());
        objects
            .map(|object| {
                let name = object["metadata"]["name"].as_str().unwrap();
                (name.parse().unwrap(), object["security-labels"].clone())
            })
            .collect()
    }

    /// The label `app` of all identities, sorted.
    async fn apps(&self) -> Vec<String> {
        let identities = self.identities().await;
        let apps = identities
            .values()
            .filter_map(|labels| labels["k8s:app"].as_str());
        let mut apps: Vec<String> = apps.map(str::to_owned).collect();
        apps.sort();
        apps
    }

    async fn wait_for_apps(&self, expected: &[&str]) {
        for _ in 0..3000 {
            if self.apps().await == expected {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("got {:?}, expected {expected:?}", self.apps().await);
    }
}

async fn settle() {
    tokio::time::sleep(Duration::from_secs(5)).await;
}

#[tokio::test(start_paused = true)]
async fn both_identities_of_a_pod_with_named_ports_exist_and_are_kept() {
    let cluster = Cluster::new().await;
    let ports = json!([{"name": "http", "containerPort": 8080}, {"name": "dns", "containerPort": 53, "protocol": "UDP"}]);
    let object = json!({
        "metadata": {"name": "a", "labels": {"app": "web"}},
        "spec": {"containers": [{"name": "main", "image": "main", "ports": ports}]},
    });
    cluster.create(&Kind::POD, "shop", object).await;
    let running = cluster.start(FLAGS).await;

    tokio::time::sleep(Duration::from_secs(30)).await;
    let identities = cluster.identities().await;
    let ports = |labels: &Value| {
        labels["gen:io.cilium.k8s.named-ports"]
            .as_str()
            .map(str::to_owned)
    };
    let mut ports: Vec<Option<String>> = identities.values().map(ports).collect();
    ports.sort_unstable();
    assert_eq!(ports, [None, Some("dns.UDP.53_http.TCP.8080".to_owned())]);
    assert_eq!(cluster.apps().await, ["web", "web"]);

    // They are found unused, as no endpoint has them yet.
    let kind = CiliumIdentity::kind();
    for id in identities.keys() {
        let patch = json!({"metadata": {"annotations": {HEARTBEAT: "2026-01-01T00:00:00Z"}}});
        let id = id.to_string();
        cluster.patch(&kind, "", &id, Subresource::None, patch).await;
    }
    tokio::time::sleep(Duration::from_secs(120)).await;
    for id in identities.keys() {
        let object = cluster
            .client
            .inner()
            .get(&kind, "", &id.to_string())
            .await
            .unwrap();
        let annotations = &object.to_value().unwrap()["metadata"]["annotations"];
        assert_eq!(annotations[HEARTBEAT], Value::Null);
    }
    testing::stop(running).await;
}

#[tokio::test(start_paused = true)]
async fn each_label_set_of_pods_gets_an_identity() {
    let cluster = Cluster::new().await;
    cluster.pod("a", "web").await;
    cluster.pod("b", "web").await;
    let running = cluster.start(FLAGS).await;
    cluster.wait_for_apps(&["web"]).await;
    cluster.pod("c", "db").await;
    cluster.wait_for_apps(&["db", "web"]).await;

    let identities = cluster.identities().await;
    assert!(
        identities.keys().all(|id| (256..=65_535).contains(id)),
        "{identities:?}"
    );
    let labels = identities.values().find(|labels| labels["k8s:app"] == "web");
    assert_eq!(
        labels.unwrap(),
        &json!({
            "k8s:app": "web",
            "k8s:io.cilium.k8s.namespace.labels.kubernetes.io/metadata.name": "shop",
            "k8s:io.cilium.k8s.policy.cluster": "default",
            "k8s:io.cilium.k8s.policy.serviceaccount": "cart",
            "k8s:io.kubernetes.pod.namespace": "shop",
        })
    );
    let (kind, id) = (
        CiliumIdentity::kind(),
        identities.keys().next().unwrap().to_string(),
    );
    let object = cluster.client.inner().get(&kind, "", &id).await.unwrap();
    let object = object.to_value().unwrap();
    assert_eq!(
        object["metadata"]["labels"],
        json!({"io.kubernetes.pod.namespace": "shop"})
    );
    testing::stop(running).await;
}

#[tokio::test(start_paused = true)]
async fn pods_that_have_no_endpoint_need_no_identity() {
    let cluster = Cluster::new().await;
    let host = json!({
        "metadata": {"name": "host", "labels": {"app": "host"}},
        "spec": {"hostNetwork": true, "serviceAccountName": "cart", "containers": [{"name": "main", "image": "main"}]},
    });
    cluster.create(&Kind::POD, "shop", host).await;
    cluster.pod("done", "done").await;
    let status = json!({"status": {"phase": "Succeeded"}});
    cluster
        .patch(&Kind::POD, "shop", "done", Subresource::Status, status)
        .await;
    let running = cluster.start(FLAGS).await;
    cluster.pod("a", "web").await;

    cluster.wait_for_apps(&["web"]).await;
    settle().await;
    assert_eq!(cluster.apps().await, ["web"]);
    testing::stop(running).await;
}

#[tokio::test(start_paused = true)]
async fn agents_create_identities_unless_the_operator_does() {
    let cluster = Cluster::new().await;
    cluster.pod("a", "web").await;
    for flags in [
        ["--identity-management-mode=agent", FLAGS[1]],
        [FLAGS[0], "--identity-allocation-mode=kvstore"],
    ] {
        let running = cluster.start(&flags).await;
        settle().await;
        assert_eq!(cluster.apps().await, [""; 0], "{flags:?}");
        testing::stop(running).await;
    }
    let running = cluster
        .start(&["--identity-management-mode=both", FLAGS[1]])
        .await;
    cluster.wait_for_apps(&["web"]).await;
    testing::stop(running).await;
}

#[tokio::test(start_paused = true)]
async fn settings_that_make_no_sense_are_findings() {
    let cluster = Cluster::new().await;
    let client: Arc<dyn Client> = cluster.client.clone();
    let client = Cell::module("test", "Client")
        .config::<IdentityConfig>()
        .config::<ClusterSettings>()
        .provide(move || client.clone());
    let settings = Settings::new().args(["--identity-management-mode=nobody", "--labels=k8s:app("]);

    let report = Hive::new([crate::cell(), client])
        .plan(settings)
        .expect_err("two are wrong")
        .to_string();

    for text in [
        "`nobody` is none of agent, operator, both",
        "`k8s:app(` is no regular expression",
    ] {
        assert!(report.contains(text), "{report}");
    }
}

#[tokio::test(start_paused = true)]
async fn label_prefixes_of_a_file_and_patterns_say_which_labels_identities_have() {
    let cluster = Cluster::new().await;
    cluster.pod("a", "web").await;
    let file = tempfile::NamedTempFile::new().unwrap();
    let prefixes = json!({"version": 1, "valid-prefixes": [{"prefix": "app", "source": "k8s"}]});
    std::fs::write(&file, prefixes.to_string()).unwrap();
    let prefixes = format!("--label-prefix-file={}", file.path().display());
    let flags = [FLAGS, &[&prefixes, "--labels=k8s:io.kubernetes.pod.namespace"]].concat();

    let running = cluster.start(&flags).await;
    cluster.wait_for_apps(&["web"]).await;

    let identities = cluster.identities().await;
    let labels: Vec<&Value> = identities.values().collect();
    assert_eq!(
        labels,
        [&json!({"k8s:app": "web", "k8s:io.kubernetes.pod.namespace": "shop"})]
    );
    testing::stop(running).await;
}

#[tokio::test(start_paused = true)]
async fn identities_that_exist_are_used_and_their_ids_are_not() {
    let cluster = Cluster::new().await;
    cluster.pod("a", "web").await;
    let running = cluster.start(FLAGS).await;
    cluster.wait_for_apps(&["web"]).await;
    testing::stop(running).await;
    let before = cluster.identities().await;

    let running = cluster.start(FLAGS).await;
    cluster.pod("b", "db").await;
    cluster.wait_for_apps(&["db", "web"]).await;
    settle().await;

    let after = cluster.identities().await;
    assert_eq!(after.len(), 2);
    assert!(before.keys().all(|id| after.contains_key(id)));
    testing::stop(running).await;
}

#[tokio::test(start_paused = true)]
async fn requests_that_fail_are_repeated_and_hold_nobody_up() {
    for fault in [
        Fault::Unreachable,
        Fault::Hangs,
        Fault::AnswerLost,
        Fault::rejected(500, "InternalError"),
        Fault::rejected(409, "AlreadyExists"),
    ] {
        let cluster = Cluster::new().await;
        for n in 0..30 {
            cluster.pod(&format!("p{n}"), &format!("app{n:02}")).await;
        }
        cluster.client.fail_times(5, Verb::Create, fault.clone());
        let running = cluster.start(FLAGS).await;
        let expected: Vec<String> = (0..30).map(|n| format!("app{n:02}")).collect();
        let expected: Vec<&str> = expected.iter().map(String::as_str).collect();

        cluster.wait_for_apps(&expected).await;
        settle().await;

        assert_eq!(cluster.apps().await, expected, "one for each with {fault:?}");
        testing::stop(running).await;
    }
}

#[tokio::test(start_paused = true)]
async fn identities_are_created_when_the_server_accepts_them_again() {
    let cluster = Cluster::new().await;
    cluster
        .client
        .inject(|request| (request.verb == Verb::Create).then(Fault::forbidden));
    cluster.pod("a", "web").await;
    let running = cluster.start(FLAGS).await;
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(cluster.apps().await, [""; 0]);
    let requests = cluster.client.count_failed(Verb::Create);
    assert!((5..20).contains(&requests), "{requests}: pauses grow to a minute");

    cluster.client.heal();
    cluster.wait_for_apps(&["web"]).await;
    testing::stop(running).await;
}

#[tokio::test(start_paused = true)]
async fn an_identity_that_is_deleted_while_a_pod_has_its_labels_comes_back() {
    let cluster = Cluster::new().await;
    cluster.pod("a", "web").await;
    let running = cluster.start(FLAGS).await;
    cluster.wait_for_apps(&["web"]).await;
    let old = *cluster.identities().await.keys().next().unwrap();

    let options = DeleteOptions::default();
    let inner = cluster.client.inner();
    inner
        .delete(&CiliumIdentity::kind(), "", &old.to_string(), &options)
        .await
        .unwrap();
    settle().await;

    assert_eq!(cluster.apps().await, ["web"]);
    testing::stop(running).await;
}

#[tokio::test(start_paused = true)]
async fn the_mark_of_unused_identities_is_removed_from_those_that_pods_want() {
    let cluster = Cluster::new().await;
    cluster.pod("a", "web").await;
    cluster.pod("b", "db").await;
    let running = cluster.start(FLAGS).await;
    cluster.wait_for_apps(&["db", "web"]).await;
    let options = DeleteOptions::default();
    let inner = cluster.client.inner();
    inner.delete(&Kind::POD, "shop", "b", &options).await.unwrap();
    let kind = CiliumIdentity::kind();
    let mark = async |app: &str, value: Option<Value>| {
        let identities = cluster.identities().await;
        let id = identities
            .iter()
            .find(|(_, labels)| labels["k8s:app"] == app)
            .unwrap()
            .0;
        if let Some(value) = value {
            let patch = json!({"metadata": {"annotations": {HEARTBEAT: value}}});
            cluster
                .patch(&kind, "", &id.to_string(), Subresource::None, patch)
                .await;
        }
        let object = inner.get(&kind, "", &id.to_string()).await.unwrap();
        let object = object.to_value().unwrap();
        object["metadata"]["annotations"][HEARTBEAT].is_string()
    };
    // The first attempt fails.
    cluster
        .client
        .fail_times(1, Verb::Update, Fault::rejected(500, "InternalError"));
    for app in ["db", "web"] {
        assert!(mark(app, Some("2026-01-01T00:00:00Z".into())).await);
    }
    tokio::time::sleep(Duration::from_secs(120)).await;
    assert!(!mark("web", None).await);
    assert!(mark("db", None).await, "no pod wants it");
    assert_eq!(cluster.client.count(Verb::Update), 1);

    // The mark is older than the pod that wants the identity.
    cluster.pod("c", "db").await;
    tokio::time::sleep(Duration::from_secs(120)).await;
    assert!(!mark("db", None).await);
    assert_eq!(cluster.apps().await, ["db", "web"]);
    testing::stop(running).await;
}

#[tokio::test(start_paused = true)]
async fn labels_that_change_make_a_new_identity() {
    let cluster = Cluster::new().await;
    cluster.pod("a", "web").await;
    let running = cluster.start(FLAGS).await;
    cluster.wait_for_apps(&["web"]).await;

    let patch = json!({"metadata": {"labels": {"app": "db"}}});
    cluster
        .patch(&Kind::POD, "shop", "a", Subresource::None, patch)
        .await;
    cluster.wait_for_apps(&["db", "web"]).await;
    let patch = json!({"metadata": {"labels": {"team": "red"}}});
    cluster
        .patch(&Kind::NAMESPACE, "", "shop", Subresource::None, patch)
        .await;
    cluster.wait_for_apps(&["db", "db", "web"]).await;
    testing::stop(running).await;
}

/// The job alone, in a cluster with this many ids.
async fn start_with_ids(cluster: &Cluster, size: u32) -> Running {
    let client: Arc<dyn Client> = cluster.client.clone();
    let cell = Cell::module("test", "Creates identities")
        .provide(skep_base_metrics::provided::<IdentityMetrics>)
        .run(move |jobs: Jobs, metrics: Arc<IdentityMetrics>| {
            let (first, last) = (NumericIdentity::new(256), NumericIdentity::new(255 + size));
            let range = IdentityRange::between(first, last);
            let world = move || World::new("default", LabelFilter::default(), range);
            jobs.spawn(create(client.clone(), metrics, world))
        });
    testing::start(Hive::new([cell])).await
}

fn health(running: &Running) -> String {
    format!("{:?}", running.health().entries())
}

#[tokio::test(start_paused = true)]
async fn requests_without_answer_cost_no_ids() {
    for fault in [Fault::Hangs, Fault::AnswerLost] {
        let cluster = Cluster::new().await;
        let apps: Vec<String> = (0..8).map(|n| format!("app{n}")).collect();
        for app in &apps {
            cluster.pod(&format!("of-{app}"), app).await;
        }
        cluster.client.fail_times(40, Verb::Create, fault.clone());
        let running = start_with_ids(&cluster, 8).await;
        let apps: Vec<&str> = apps.iter().map(String::as_str).collect();
        cluster.wait_for_apps(&apps).await;
        settle().await;
        assert_eq!(cluster.identities().await.len(), 8, "{fault:?}");
        testing::stop(running).await;
    }
}

#[tokio::test(start_paused = true)]
async fn health_names_objects_that_cannot_be_decoded() {
    let cluster = Cluster::new().await;
    cluster.client.rewrite(|object| {
        if object["metadata"]["name"] == "256" {
            object["security-labels"] = "x".into();
        }
    });
    let odd = json!({"metadata": {"name": "256"}, "security-labels": {"k8s:app": "x"}});
    cluster.create(&CiliumIdentity::kind(), "", odd).await;
    let running = cluster.start(FLAGS).await;

    settle().await;

    let report = health(&running);
    let expected = "1 objects cannot be decoded, such as CiliumIdentity 256: security-labels: invalid type";
    assert!(report.contains(expected), "{report}");
    testing::stop(running).await;
}

#[tokio::test(start_paused = true)]
async fn health_tells_when_no_id_is_left() {
    let cluster = Cluster::new().await;
    for app in ["a", "b", "c", "d"] {
        cluster.pod(&format!("of-{app}"), app).await;
    }
    // Its labels cannot be read; its id is used all the same.
    let odd = json!({"metadata": {"name": "256"}, "security-labels": {"": "x"}});
    cluster.create(&CiliumIdentity::kind(), "", odd).await;
    let running = start_with_ids(&cluster, 3).await;
    settle().await;
    assert_eq!(cluster.identities().await.len(), 3);
    let told = health(&running);
    assert!(
        told.contains("no id is left for 2 label sets of pods, such as `k8s:app=c;")
            && told.contains("all 3 are in use"),
        "{told}"
    );

    // An identity that nothing wants goes.
    let options = DeleteOptions::default();
    let inner = cluster.client.inner();
    inner
        .delete(&CiliumIdentity::kind(), "", "256", &options)
        .await
        .unwrap();
    settle().await;
    assert_eq!(cluster.identities().await.len(), 3);
    let told = health(&running);
    assert!(
        told.contains("no id is left for 1 label sets of pods, such as `k8s:app=d;"),
        "{told}"
    );
    inner.delete(&Kind::POD, "shop", "of-d", &options).await.unwrap();
    settle().await;
    let told = health(&running);
    assert!(told.contains("only 0 of 3 ids are left"), "{told}");
    testing::stop(running).await;
}

#[tokio::test(start_paused = true)]
async fn ids_that_were_refused_are_free_when_a_list_does_not_have_them() {
    let cluster = Cluster::new().await;
    cluster.pod("a", "web").await;
    cluster.pod("b", "db").await;
    cluster
        .client
        .fail_times(1, Verb::Create, Fault::rejected(409, "AlreadyExists"));
    let running = start_with_ids(&cluster, 2).await;
    settle().await;
    assert_eq!(
        cluster.identities().await.len(),
        1,
        "the other id is in use, as far as is known"
    );
    testing::stop(running).await;

    // Watches that cannot go on make lists.
    let cluster = Cluster::new().await;
    cluster.pod("a", "web").await;
    cluster.pod("b", "db").await;
    cluster
        .client
        .inject(|request| (request.verb == Verb::Watch).then(|| Fault::rejected(410, "Expired")));
    cluster
        .client
        .fail_times(1, Verb::Create, Fault::rejected(409, "AlreadyExists"));
    let running = start_with_ids(&cluster, 2).await;
    cluster.wait_for_apps(&["db", "web"]).await;
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(
        cluster.identities().await.len(),
        2,
        "what a list shows is not created again"
    );
    testing::stop(running).await;
}

#[tokio::test(start_paused = true)]
async fn forty_label_sets_a_second_are_kept_up_with_by_a_slow_server() {
    let cluster = Cluster::new().await;
    let running = cluster.start(FLAGS).await;
    settle().await;
    cluster.client.inject(|request| {
        (request.verb == Verb::Create).then_some(Fault::Delayed(Duration::from_millis(150)))
    });
    for n in 0..400 {
        cluster.pod(&format!("p{n}"), &format!("app{n}")).await;
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(cluster.identities().await.len(), 400);
    testing::stop(running).await;
}
