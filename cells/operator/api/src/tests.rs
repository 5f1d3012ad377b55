// SPDX-License-Identifier: Apache-2.0

//! Answers over TCP, on ports that the kernel chooses.

use std::net::SocketAddr;
use std::sync::Arc;

use async_trait::async_trait;
use hive::{Cell, Hive, Member, Settings, testing};
use skep_base_metrics::{CounterVec, MetricHandle, Namespace, Opts};
use skep_k8s_client::{Client, DisabledClient};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::{HealthProbe, Listening, RemoteClusters, Unhealthy, cell};

enum Store {
    Works,
    Fails,
    Hangs,
}

#[async_trait]
impl HealthProbe for Store {
    fn name(&self) -> &'static str {
        "kvstore"
    }

    async fn check(&self) -> Result<(), Unhealthy> {
        match self {
            Self::Works => Ok(()),
            Self::Fails => Err("quorum lost".into()),
            Self::Hangs => std::future::pending().await,
        }
    }
}

fn client() -> Arc<dyn Client> {
    Arc::new(DisabledClient)
}

async fn get(address: SocketAddr, path: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    text
}

/// The answers to `/healthz` and `/v1/healthz`, on every address.
async fn answers(store: fn() -> Store) -> Vec<String> {
    let probe = move || -> Member<Arc<dyn HealthProbe>> { Member(Arc::new(store())) };
    let hive = Hive::new([cell(), Cell::group([]).provide(client).provide(probe)]).root::<Arc<Listening>>();
    let settings = Settings::new().flag("operator-api-serve-addr", "localhost:0");
    let running = testing::start_with(hive, settings).await;
    let addresses = running.get::<Arc<Listening>>().unwrap().addresses();
    assert!(!addresses.is_empty());
    let mut all = Vec::new();
    for address in addresses {
        assert!(address.ip().is_loopback(), "{address}");
        all.push(get(address, "/healthz").await);
        all.push(get(address, "/v1/healthz").await);
        assert!(get(address, "/v1/other").await.starts_with("HTTP/1.1 404"));
    }
    testing::stop(running).await;
    all
}

#[tokio::test]
async fn healthy_is_ok_at_both_paths() {
    for answer in answers(|| Store::Works).await {
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        assert!(answer.ends_with("\r\n\r\nok"), "{answer}");
    }
}

#[tokio::test]
async fn metrics_have_the_model_of_cilium() {
    let counted = || -> hive::Members<MetricHandle> {
        let runs = CounterVec::new(Opts::new("runs_total", "Runs"), ["outcome"]);
        runs.with(["success"]).inc();
        hive::Members(vec![Arc::new(runs)])
    };
    let cells = [
        cell(),
        statedb::cell(),
        skep_base_metrics::cell_in(Namespace::OPERATOR),
        Cell::group([]).provide(client).provide(counted),
    ];
    let hive = Hive::new(cells).root::<Arc<Listening>>();
    let settings = Settings::new().flag("operator-api-serve-addr", "localhost:0");
    let running = testing::start_with(hive, settings).await;
    let address = running.get::<Arc<Listening>>().unwrap().addresses()[0];

    let answer = get(address, "/v1/metrics/").await;

    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let body = answer.split("\r\n\r\n").nth(1).unwrap();
    let expected = r#"{"labels":{"outcome":"success"},"name":"cilium_operator_runs_total","value":1}"#;
    assert!(body.starts_with('[') && body.contains(expected), "{body}");
    testing::stop(running).await;
}

#[tokio::test]
async fn remote_clusters_are_those_that_the_leader_tells() {
    let hive = Hive::new([cell(), Cell::group([]).provide(client)])
        .root::<Arc<Listening>>()
        .root::<Arc<RemoteClusters>>();
    let settings = Settings::new().flag("operator-api-serve-addr", "localhost:0");
    let running = testing::start_with(hive, settings).await;
    let address = running.get::<Arc<Listening>>().unwrap().addresses()[0];
    let clusters: Arc<RemoteClusters> = running.get().unwrap();
    let body = async || {
        let answer = get(address, "/v1/cluster").await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        answer.split("\r\n\r\n").nth(1).unwrap().to_owned()
    };

    assert_eq!(body().await, "[]");
    clusters.set(|| serde_json::json!([{"name": "alder"}]));
    assert_eq!(body().await, r#"[{"name":"alder"}]"#);
    clusters.clear();
    assert_eq!(body().await, "[]");
    testing::stop(running).await;
}

#[tokio::test]
async fn a_failing_probe_is_named() {
    for answer in answers(|| Store::Fails).await {
        assert!(answer.starts_with("HTTP/1.1 500"), "{answer}");
        assert!(answer.ends_with("kvstore: quorum lost"), "{answer}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_probe_that_hangs_has_failed() {
    let probes: [Arc<dyn HealthProbe>; 1] = [Arc::new(Store::Hangs)];

    let (status, text) = crate::health::answer(&probes).await;

    assert_eq!(
        (status.as_u16(), text.as_str()),
        (500, "kvstore: no answer within 2.5s")
    );
}

fn plan(address: &str) -> Result<Vec<String>, String> {
    let settings = Settings::new().flag("operator-api-serve-addr", address);
    let plan = Hive::new([cell(), Cell::group([]).provide(client)])
        .plan(settings)
        .map_err(|report| report.to_string())?;
    let config = plan.config::<crate::Config>().unwrap();
    Ok(config.addresses().iter().map(ToString::to_string).collect())
}

#[test]
fn addresses_are_those_of_cilium() {
    assert_eq!(plan("localhost:9234").unwrap(), ["127.0.0.1:9234", "[::1]:9234"]);
    assert_eq!(plan(":9234").unwrap(), ["[::]:9234"]);
    assert_eq!(plan("127.0.0.1:9234").unwrap(), ["127.0.0.1:9234"]);
    assert_eq!(plan("[::1]:9234").unwrap(), ["[::1]:9234"]);
}

#[test]
fn what_is_no_address_is_a_finding_of_the_plan() {
    for text in ["", "9234", "localhost:", "localhost:99999", "host:1"] {
        let report = plan(text).expect_err(text);
        assert!(report.contains("`--operator-api-serve-addr`"), "{report}");
    }
}
