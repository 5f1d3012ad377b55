// SPDX-License-Identifier: Apache-2.0

//! `clustermesh` as a process, while the API server is gone.

use std::net::{Ipv4Addr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::json;
use skep_k8s_apiserver::testing::ServedCluster;
use skep_k8s_types::Kind;
use skep_kvstore_client::testing::RunningClient;
use skep_kvstore_client::{KeyValue, keys};
use skep_kvstore_etcd::testing::{EtcdServer, Gate, Passes};
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

static NODES: Kind = Kind::new("cilium.io", "v2", "CiliumNode", "ciliumnodes", false);

/// How long the API server is gone. The client gives it up after a second, where minutes are usual.
const OUTAGE: Duration = Duration::from_secs(10);

/// The process, which ends with this value.
struct Exporter {
    child: Child,
    folder: TempDir,
}

impl Exporter {
    fn start(api_port: u16, etcd: &EtcdServer) -> Self {
        let folder = tempfile::tempdir().expect("there is a folder");
        let file = |name: &str| folder.path().join(name).display().to_string();
        let log = std::fs::File::create(file("log")).expect("it can be written");
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("there is a free port");
        let health_port = free.local_addr().expect("it is bound").port();
        drop(free);
        let child = Command::new(env!("CARGO_BIN_EXE_skep-clustermesh-apiserver"))
            .arg("clustermesh")
            .args([
                "--cluster-name=alder",
                "--cluster-id=7",
                "--k8s-heartbeat-timeout=1s",
            ])
            .arg(format!("--k8s-api-server-urls=http://127.0.0.1:{api_port}"))
            .arg(format!("--k8s-api-server-state-file={}", file("server")))
            .arg(format!(
                "--kvstore-opt=etcd.address=http://127.0.0.1:{}",
                etcd.port()
            ))
            .arg(format!("--health-port={health_port}"))
            .arg(format!("--shell-sock-path={}", file("shell.sock")))
            .arg(format!("--health-history-file={}", file("history")))
            .env_clear()
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("it can be shared"))
            .stderr(log)
            .spawn()
            .expect("it starts");
        Self { child, folder }
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    fn shell(&self, command: &str) -> String {
        let output = Command::new(env!("CARGO_BIN_EXE_skep-clustermesh-apiserver"))
            .args(["shell", "--shell-sock-path"])
            .arg(self.folder.path().join("shell.sock"))
            .arg(command)
            .output()
            .expect("it runs");
        assert!(output.status.success(), "{output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

async fn get(client: &RunningClient, key: &str) -> Option<KeyValue> {
    client.get(key).await.expect("etcd answers")
}

async fn until(exporter: &Exporter, what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let began = Instant::now();
    while !is_so().await {
        assert!(
            began.elapsed() < Duration::from_secs(60),
            "not within a minute: {what}\n{}",
            exporter.log()
        );
        sleep(Duration::from_millis(50)).await;
    }
}

fn global(name: &str) -> serde_json::Value {
    json!({
        "metadata": {
            "name": name, "namespace": "shop", "annotations": { "service.cilium.io/global": "true" },
        },
        "spec": { "ports": [{ "port": 80 }] },
    })
}

/// Nothing is withdrawn meanwhile; afterwards what has changed is written, and nothing else.
#[tokio::test(flavor = "multi_thread")]
async fn an_api_server_that_is_gone_changes_nothing_until_it_is_back() {
    let served = ServedCluster::start().await;
    let cluster = served.cluster();
    skep_k8s_crds::register_all(
        &**cluster.client(),
        &[
            skep_k8s_crds::definitions::cilium_node(),
            skep_k8s_crds::definitions::cilium_identity(),
            skep_k8s_crds::definitions::cilium_endpoint(),
        ],
    )
    .await
    .expect("they are defined");
    cluster.namespace("shop").await;
    cluster.create(&Kind::SERVICE, global("cart")).await;
    let spec = json!({ "addresses": [{ "type": "InternalIP", "ip": "192.168.50.21" }] });
    cluster
        .create(&NODES, json!({ "metadata": { "name": "n1" }, "spec": spec }))
        .await;
    let etcd = EtcdServer::start().await;
    let gate = Gate::before(served.address().port()).await;
    let mut exporter = Exporter::start(gate.port(), &etcd);
    let client = RunningClient::full(etcd.backend());
    let service = |name: &str| format!("cilium/state/services/v1/alder/shop/{name}");
    let (cart, till, node) = (service("cart"), service("till"), "cilium/state/nodes/v1/alder/n1");
    let canary = "cilium/synced/alder/cilium/state/nodes/v1";
    for key in [cart.as_str(), node, canary] {
        until(&exporter, key, async || get(&client, key).await.is_some()).await;
    }
    let before = get(&client, node).await.expect("it is published").mod_revision;

    // At first it hangs, then there is nothing.
    gate.set(Passes::Requests);
    cluster.delete(&Kind::SERVICE, "shop", "cart").await;
    cluster.create(&Kind::SERVICE, global("till")).await;
    let began = Instant::now();
    while began.elapsed() < OUTAGE {
        if began.elapsed() > OUTAGE / 3 {
            gate.set(Passes::Nothing);
        }
        sleep(Duration::from_millis(250)).await;
        assert!(get(&client, &cart).await.is_some() && get(&client, node).await.is_some());
        assert!(get(&client, keys::HEARTBEAT).await.is_some());
        assert_eq!(
            exporter.child.try_wait().expect("it is asked"),
            None,
            "{}",
            exporter.log()
        );
    }
    let degraded = exporter.shell("health --levels=degraded");
    assert!(
        degraded.contains("k8s"),
        "health says that the API server is gone: {degraded}{}",
        exporter.shell("health")
    );
    gate.set(Passes::All);

    until(&exporter, "the new service is published", async || {
        get(&client, &till).await.is_some()
    })
    .await;
    until(&exporter, "the deleted one is withdrawn", async || {
        get(&client, &cart).await.is_none()
    })
    .await;
    assert_eq!(get(&client, node).await.expect("it stays").mod_revision, before);
    let listed = exporter.shell("kvstore/list --keys-only cilium/state/");
    assert_eq!(listed, format!("# {node}\n# {till}\n"));
}
