// SPDX-License-Identifier: Apache-2.0

//! The program against an API server in memory whose pods are fakes.

#![allow(clippy::unwrap_used, reason = "helpers of tests, not only tests, unwrap")]

use std::{collections::BTreeMap, io, net::SocketAddr, path::PathBuf, process::Output, sync::Arc};

use async_trait::async_trait;
use bytes::Bytes;
use futures::{FutureExt as _, StreamExt as _, stream, stream::BoxStream};
use parking_lot::Mutex;
use serde_json::{Value, json};
use skep_k8s_apiserver::{
    ExecOptions, Execution, HttpOptions, HttpServer, LogOptions, PodRuntime, PodRuntimeError,
};
use skep_k8s_memory::{
    in_process_client,
    testing::{TestCluster, api_server},
};
use skep_k8s_types::Kind;
use tokio_util::sync::{CancellationToken, DropGuard};

const DAEMON_SETS: Kind = Kind::new("apps", "v1", "DaemonSet", "daemonsets", true);
const DEPLOYMENTS: Kind = Kind::new("apps", "v1", "Deployment", "deployments", true);

/// Answers of programs, by the words of their command: exit code and output.
type Answers = Arc<Mutex<BTreeMap<String, (i32, String)>>>;

/// Pods that answer on demand.
#[derive(Debug, Default)]
struct Fakes(Answers);

#[async_trait]
impl PodRuntime for Fakes {
    async fn log(&self, _: &Value, _: &LogOptions) -> Result<BoxStream<'static, Bytes>, PodRuntimeError> {
        let lines = stream::iter([Bytes::from_static(b"level=info msg=\"all is well\"\n")]);
        Ok(lines.boxed())
    }

    async fn exec(&self, _: &Value, options: &ExecOptions) -> Result<Execution, PodRuntimeError> {
        let words = options.command.join(" ");
        let answers = self.0.lock();
        let found = answers
            .iter()
            .find(|(prefix, _)| words.starts_with(prefix.as_str()));
        let (code, text) = found.map_or((0, String::new()), |(_, answer)| answer.clone());
        Ok(Execution {
            stdin: None,
            stdout: Some(Box::pin(io::Cursor::new(text.into_bytes()))),
            stderr: None,
            resize: None,
            ended: async move { Ok(code) }.boxed(),
        })
    }
}

struct Server {
    cluster: TestCluster,
    answers: Answers,
    folder: tempfile::TempDir,
    _stop: DropGuard,
}

impl Server {
    async fn start() -> Self {
        let (api, answers) = (api_server(), Answers::default());
        let options = HttpOptions {
            pods: Some(Arc::new(Fakes(answers.clone()))),
            ..HttpOptions::default()
        };
        let server = HttpServer::bind(([127, 0, 0, 1], 0).into(), api.clone(), options).unwrap();
        let (address, stop) = (server.address(), CancellationToken::new());
        tokio::spawn(server.serve(stop.clone()));
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("kubeconfig"), kubeconfig(address)).unwrap();
        let cluster = TestCluster::of(Arc::new(in_process_client(&api)));
        cluster.namespace("kube-system").await;
        Self {
            cluster,
            answers,
            folder,
            _stop: stop.drop_guard(),
        }
    }

    fn answer(&self, words: &str, code: i32, text: &str) {
        self.answers
            .lock()
            .insert(words.to_owned(), (code, text.to_owned()));
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    async fn skep(&self, line: &str) -> Output {
        let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_skep-cluster"));
        command
            .args(line.split(' '))
            .env("KUBECONFIG", self.path("kubeconfig"));
        command.current_dir(self.folder.path()).output().await.unwrap()
    }

    /// Runs a command that succeeds; its output.
    async fn out(&self, line: &str) -> String {
        let output = self.skep(line).await;
        let text = String::from_utf8(output.stdout).unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{line}: {text}\n{errors}");
        text
    }

    async fn pod(&self, namespace: &str, name: &str, node: &str, address: &str, labels: Value) {
        let container = labels["container"].as_str().unwrap_or("main").to_owned();
        let mut labels = labels;
        labels.as_object_mut().unwrap().shift_remove("container");
        let pod = json!({
            "metadata": { "namespace": namespace, "name": name, "labels": labels },
            "spec": { "nodeName": node, "containers": [{ "name": container, "image": "localhost/skep/agent:1" }] },
        });
        self.cluster.create(&Kind::POD, pod).await;
        let status = json!({
            "phase": "Running",
            "podIP": address,
            "podIPs": [{ "ip": address }],
            "conditions": [{ "type": "Ready", "status": "True" }],
            "containerStatuses": [{ "name": container, "restartCount": 0, "state": { "running": {} } }],
        });
        self.cluster
            .patch_status(&Kind::POD, namespace, name, status)
            .await;
    }

    /// An installation with an agent on each of two nodes.
    async fn install(&self) {
        let settings = json!({ "cluster-name": "east", "cluster-id": "1", "kube-proxy-replacement": "true" });
        let map =
            json!({ "metadata": { "namespace": "kube-system", "name": "cilium-config" }, "data": settings });
        self.cluster.create(&Kind::CONFIG_MAP, map).await;
        for (index, node) in ["n1", "n2"].into_iter().enumerate() {
            self.cluster
                .create(&Kind::NODE, json!({ "metadata": { "name": node } }))
                .await;
            let status = json!({
                "addresses": [{ "type": "InternalIP", "address": format!("192.0.2.{index}") }],
                "nodeInfo": { "kernelVersion": "6.12.0", "operatingSystem": "linux" },
            });
            self.cluster.patch_status(&Kind::NODE, "", node, status).await;
            let labels = json!({ "k8s-app": "cilium", "container": "cilium-agent" });
            self.pod(
                "kube-system",
                &format!("cilium-{node}"),
                node,
                &format!("192.0.2.{index}"),
                labels,
            )
            .await;
        }
        let template = json!({ "metadata": { "labels": { "x": "y" } }, "spec": { "containers": [{ "name": "a", "image": "a" }] } });
        let spec = json!({ "selector": { "matchLabels": { "x": "y" } }, "template": template });
        let named =
            |name: &str| json!({ "metadata": { "namespace": "kube-system", "name": name }, "spec": spec });
        self.cluster.create(&DAEMON_SETS, named("cilium")).await;
        let status = json!({ "desiredNumberScheduled": 2, "currentNumberScheduled": 2, "numberMisscheduled": 0, "numberReady": 2,
            "numberAvailable": 2, "updatedNumberScheduled": 2, "observedGeneration": 1 });
        self.cluster
            .patch_status(&DAEMON_SETS, "kube-system", "cilium", status)
            .await;
        self.cluster.create(&DEPLOYMENTS, named("cilium-operator")).await;
        let status = json!({ "replicas": 1, "readyReplicas": 1, "availableReplicas": 1, "updatedReplicas": 1, "observedGeneration": 1 });
        self.cluster
            .patch_status(&DEPLOYMENTS, "kube-system", "cilium-operator", status)
            .await;
        self.answer("skep status", 0, r#"{"cilium":{"state":"Ok"}}"#);
        self.answer("skep endpoint list", 0, "[]");
        self.answer("skep policy get", 0, r#"{"revision":1}"#);
        self.answer("skep metrics list", 0, "[]");
        let address = r#"{"icmp":{},"http":{}}"#;
        let node = format!(r#"{{"name":"n","host":{{"primary-address":{address}}}}}"#);
        self.answer(
            "skep health status",
            0,
            &format!(r#"{{"nodes":[{node},{node}]}}"#),
        );
    }
}

fn kubeconfig(address: SocketAddr) -> String {
    format!(
        "apiVersion: v1
kind: Config
current-context: kind-east
clusters: [{{ name: kind-east, cluster: {{ server: 'http://{address}' }} }}]
users: [{{ name: user, user: {{}} }}]
contexts: [{{ name: kind-east, context: {{ cluster: kind-east, user: user }} }}]
"
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn status_is_about_controllers_and_agents() {
    let server = Server::start().await;

    let missing = server.skep("status").await;
    assert!(missing.status.success());
    assert!(String::from_utf8_lossy(&missing.stdout).contains("DaemonSet cilium is not installed"));

    server.install().await;
    let text = server.out("status --wait --wait-duration 60s").await;
    assert!(text.contains("Desired: 2, Ready: 2/2, Available: 2/2"), "{text}");
    let value: Value = serde_json::from_str(&server.out("status -o json").await).unwrap();
    assert_eq!(value["cilium_status"].as_object().unwrap().len(), 2, "{value}");
    assert_eq!(value["image_count"]["cilium"]["localhost/skep/agent:1"], 2);

    server.answer(
        "skep status",
        0,
        r#"{"cilium":{"state":"Failure","msg":"no API server"}}"#,
    );
    let waited = server.skep("status --wait --wait-duration 1s").await;
    assert!(!waited.status.success());
    let text = String::from_utf8_lossy(&waited.stderr);
    assert!(
        text.contains(
            "timeout while waiting for status to become successful: cilium-n1: Cilium: no API server"
        ),
        "{text}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn settings_are_shown_and_changed() {
    let server = Server::start().await;
    assert!(!server.skep("config view").await.status.success());
    server.install().await;

    server.out("config set debug true --restart=false").await;
    let text = server.out("config view").await;
    server.out("config delete debug --restart=false").await;

    assert_eq!(
        text,
        "cluster-id                1\ncluster-name              east\ndebug                     true\nkube-proxy-replacement    true\n"
    );
    assert!(!server.out("config view").await.contains("debug"));
}

#[tokio::test(flavor = "multi_thread")]
async fn preflight_checks_cluster_and_nodes() {
    let server = Server::start().await;
    server.install().await;
    let found = r#"[{"name":"kernel","outcome":"ok","text":"6.12"},{"name":"cgroup2","outcome":"error","text":"missing"}]"#;
    server.answer("skep preflight node", 0, found);

    let output = server.skep("preflight -o json").await;

    assert!(!output.status.success());
    let checks: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    let errors: Vec<String> = checks
        .iter()
        .filter(|check| check["outcome"] == "error")
        .map(|check| format!("{}: {}", check["node"], check["name"]))
        .collect();
    assert_eq!(errors, ["\"n1\": \"cgroup2\"", "\"n2\": \"cgroup2\""]);
}

async fn connectivity_pods(server: &Server) {
    let namespace = "cilium-test-1";
    server.cluster.namespace(namespace).await;
    for (name, kind, node, address) in [
        ("client", "client", "n1", "10.0.0.1"),
        ("client2", "client", "n1", "10.0.0.2"),
        ("client3", "client", "n2", "10.0.1.3"),
        ("echo-same-node", "echo", "n1", "10.0.0.4"),
        ("echo-other-node", "echo", "n2", "10.0.1.5"),
        ("host-netns", "host-netns", "n1", "192.0.2.0"),
    ] {
        let labels = json!({ "name": name, "kind": kind });
        server
            .pod(namespace, &format!("{name}-x"), node, address, labels)
            .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn connectivity_tests_compare_exit_codes() {
    let server = Server::start().await;
    server.install().await;
    connectivity_pods(&server).await;

    let line = "connectivity test --test ^no-policies$/pod-to-pod --test health --test no-unexpected --junit-file junit.xml";
    let text = server.out(line).await;
    assert!(
        text.contains("✅ [cilium-test-1] All 3 tests (10 actions) successful, 0 tests skipped"),
        "{text}"
    );
    assert!(text.contains("6/6"), "{text}");

    server.answer("/usr/bin/skep-probe get http://10.0.1.5:8080", 28, "");
    let failed = server.skep(&format!("{line} --retry 1")).await;
    let text = String::from_utf8_lossy(&failed.stdout);
    assert_eq!(failed.status.code(), Some(1));
    assert!(text.contains("❌ 1/3 tests failed (3/10 actions)"), "{text}");
    let xml = std::fs::read_to_string(server.path("junit.xml")).unwrap();
    assert!(xml.contains("failures=\"1\""), "{xml}");
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_are_migrated_one_by_one() {
    let server = Server::start().await;
    server.install().await;

    let plan = server.out("migrate plan").await;
    assert!(
        plan.contains("cni.customConf=true (custom-cni-conf is ``)"),
        "{plan}"
    );
    let refused = server.skep("migrate node n1").await;
    assert!(
        String::from_utf8_lossy(&refused.stderr).contains("lacks values"),
        "{refused:?}"
    );

    let status: Value = serde_json::from_str(&server.out("migrate status -o json").await).unwrap();
    assert_eq!(status["nodes"][0]["cni"], false, "{status}");
    assert_eq!(status["nodes"].as_array().unwrap().len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn sysdumps_have_objects_and_logs() {
    let server = Server::start().await;
    server.install().await;
    server.answer("skep sysdump", 0, "archive");

    server.out("sysdump --output-filename dump").await;

    let file = std::fs::File::open(server.path("dump.tar.gz")).unwrap();
    let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(file));
    let names: Vec<String> = archive
        .entries()
        .unwrap()
        .map(|entry| entry.unwrap().path().unwrap().display().to_string())
        .collect();
    for part in [
        "dump/k8s-nodes-",
        "dump/cilium-configmap-",
        "dump/logs-cilium-n1-cilium-agent-",
        "dump/cilium-bugtool-cilium-n2-",
    ] {
        assert!(
            names.iter().any(|name| name.starts_with(part)),
            "{part}: {names:?}"
        );
    }
}

/// Needs the program `helm`.
#[tokio::test(flavor = "multi_thread")]
async fn installs_what_the_cluster_implies() {
    let server = Server::start().await;
    server
        .cluster
        .create(&Kind::NODE, json!({ "metadata": { "name": "n1" } }))
        .await;

    let text = server
        .out("install --dry-run-helm-values --set cluster.id=3")
        .await;

    let values: Value = serde_norway::from_str(&text).unwrap();
    assert_eq!(values["cluster"]["name"], "kind-east");
    assert_eq!(values["ipam"]["mode"], "kubernetes");
    assert_eq!(values["kubeProxyReplacement"], "true");
    assert_eq!(values["bpf"]["masquerade"], true);
    let helm = std::process::Command::new("helm").arg("version").output();
    if helm.is_ok_and(|helm| helm.status.success()) {
        let manifest = server.out("install --dry-run --set cluster.id=3").await;
        assert!(manifest.contains("cluster-name: \"kind-east\""), "{manifest}");
    }
}
