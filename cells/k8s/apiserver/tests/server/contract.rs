// SPDX-License-Identifier: Apache-2.0

//! What clients may expect of an API server, checked in process, over HTTP, and against a real `kube-apiserver` if
//! `KUBEBUILDER_ASSETS` names a folder with one.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]
#![expect(
    clippy::disallowed_methods,
    reason = "what runs beside the test is no job of a hive"
)]

mod cases;
mod real;

use std::sync::Arc;

use cases::Subject;
use skep_k8s_apiserver::{HttpOptions, HttpServer, OpenApiSchemas};
use skep_k8s_client::Client;
use skep_k8s_client::remote::{RemoteClient, Settings as RemoteSettings, Target};
use skep_k8s_memory::testing::api_server_with;
use skep_k8s_memory::{ApiServer, Settings, in_process_client};
use tokio_util::sync::CancellationToken;

fn embedded() -> ApiServer {
    api_server_with(Settings {
        bookmark_every: std::time::Duration::from_millis(50),
        schemas: Some(Arc::new(OpenApiSchemas)),
        ..Settings::default()
    })
}

fn remote(url: &str) -> Arc<dyn Client> {
    let settings = RemoteSettings {
        qps: 0.0,
        ..RemoteSettings::default()
    };
    Arc::new(RemoteClient::new(Target::Urls(vec![url.to_owned()]), settings).unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_process() {
    let api = embedded();
    let tracker = api.tracker().clone();
    let subject = Subject {
        client: Arc::new(in_process_client(&api)),
        compact: Some(Box::new(move || tracker.compact())),
        is_real: false,
    };

    cases::all(&subject).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn over_http() {
    let api = embedded();
    let tracker = api.tracker().clone();
    let server = HttpServer::bind("127.0.0.1:0".parse().unwrap(), api, HttpOptions::default()).unwrap();
    let url = format!("http://{}", server.address());
    let stop = CancellationToken::new();
    let serving = tokio::spawn(server.serve(stop.clone()));
    let subject = Subject {
        client: remote(&url),
        compact: Some(Box::new(move || tracker.compact())),
        is_real: false,
    };

    cases::all(&subject).await;

    stop.cancel();
    tokio::time::timeout(std::time::Duration::from_secs(30), serving)
        .await
        .unwrap()
        .unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn real_server() {
    let Some(programs) = real::assets() else {
        eprintln!("skipped: KUBEBUILDER_ASSETS names no folder with kube-apiserver and etcd");
        return;
    };

    let server = real::start(programs);
    let settings = RemoteSettings {
        qps: 0.0,
        ..RemoteSettings::default()
    };
    let target = Target::Kubeconfig(server.kubeconfig(), Vec::new());
    let client = Arc::new(RemoteClient::new(target, settings).unwrap());
    let connected = client.wait_connected(
        std::time::Duration::from_secs(60),
        std::time::Duration::from_millis(500),
    );
    if let Err(error) = connected.await {
        panic!("{error}; the server's last words:\n{}", server.last_words());
    }

    let subject = Subject {
        client,
        compact: None,
        is_real: true,
    };
    cases::all(&subject).await;
}
