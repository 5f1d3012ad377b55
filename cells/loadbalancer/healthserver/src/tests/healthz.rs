// SPDX-License-Identifier: Apache-2.0

//! Answers for kube-proxy's health, over sockets.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hive::{Cell, Hive, Running, Settings};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::{NodeHealth, kube_proxy_healthz};

#[derive(Default)]
struct Node {
    is_ill: AtomicBool,
    is_leaving: AtomicBool,
}

impl NodeHealth for Node {
    fn agent_is_healthy(&self) -> bool {
        !self.is_ill.load(Ordering::Relaxed)
    }

    fn is_leaving(&self) -> bool {
        self.is_leaving.load(Ordering::Relaxed)
    }
}

async fn start(flags: &[(&str, &str)]) -> (Arc<Node>, Running) {
    let node = Arc::new(Node::default());
    let health: Arc<dyn NodeHealth> = node.clone();
    let own = [
        Cell::module("node", "Health of the node").provide(move || health.clone()),
        kube_proxy_healthz(),
    ];
    let cells = super::surroundings().into_iter().chain(own);
    let settings = flags.iter().fold(Settings::new(), |settings, (flag, value)| {
        settings.flag(*flag, *value)
    });
    let running = hive::testing::start_with(Hive::new(cells), settings).await;
    (node, running)
}

/// Status and body, once a server listens.
async fn get(address: &str, path: &str) -> (u16, String) {
    let address: SocketAddr = address.parse().unwrap();
    let connect = async {
        loop {
            match TcpStream::connect(address).await {
                Ok(stream) => return stream,
                Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        }
    };
    let mut stream = tokio::time::timeout(Duration::from_secs(30), connect)
        .await
        .expect("a server listens");
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    let status = text.split(' ').nth(1).unwrap().parse().unwrap();
    (status, text.split_once("\r\n\r\n").unwrap().1.to_owned())
}

#[tokio::test]
async fn healthz_follows_agent_and_node() {
    let address = &format!("{}:10256", super::own_address(101));
    let (node, _running) = start(&[
        ("kube-proxy-replacement", "true"),
        ("kube-proxy-replacement-healthz-bind-address", address),
    ])
    .await;

    let (status, body) = get(address, "/healthz").await;
    assert_eq!(status, 200);
    let times: serde_json::Value = serde_json::from_str(&body).unwrap();
    assert_eq!(times["lastUpdated"], times["currentTime"]);
    assert!(
        times["currentTime"].as_str().unwrap().ends_with(" +0000 UTC"),
        "{body}"
    );

    node.is_ill.store(true, Ordering::Relaxed);
    let (status, body) = get(address, "/healthz").await;
    assert_eq!(status, 503);
    // Nothing was ever reconciled here.
    assert!(
        body.starts_with(r#"{"lastUpdated": "1970-01-01 00:00:00 +0000 UTC","currentTime": ""#),
        "{body}"
    );
    node.is_ill.store(false, Ordering::Relaxed);
    node.is_leaving.store(true, Ordering::Relaxed);
    assert_eq!(get(address, "/healthz").await.0, 503);
    assert_eq!(get(address, "/other").await.0, 404);

    // A second agent may listen before the first has ended.
    let (_second, _runs) = start(&[
        ("kube-proxy-replacement", "true"),
        ("kube-proxy-replacement-healthz-bind-address", address),
    ])
    .await;
}

#[tokio::test]
async fn healthz_needs_an_address_and_the_replacement() {
    let address = &format!("{}:10256", super::own_address(102));
    let bind_address = ("kube-proxy-replacement-healthz-bind-address", &**address);
    let listeners = async |flags: &[(&str, &str)]| {
        let (_, running) = start(flags).await;
        let jobs = running.controller().jobs();
        let names = jobs.iter().map(|job| job.name.to_string());
        names.filter(|name| name.starts_with("listener-")).count()
    };

    assert_eq!(
        listeners(&[bind_address, ("kube-proxy-replacement", "true")]).await,
        1
    );
    assert_eq!(
        listeners(&[bind_address, ("kube-proxy-replacement", "false")]).await,
        0
    );
    assert_eq!(listeners(&[("kube-proxy-replacement", "true")]).await, 0);
}
