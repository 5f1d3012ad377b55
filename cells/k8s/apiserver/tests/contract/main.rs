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

use skep_k8s::Client;
use skep_k8s::remote::{RemoteClient, Settings as RemoteSettings, Target};
use skep_k8s_apiserver::{
    ApiServer, HttpOptions, HttpServer, Manner, Registry, Rows, Settings, Tracker, in_process_client,
};
use tokio_util::sync::CancellationToken;

use cases::Subject;

fn embedded() -> ApiServer {
    let rows = Rows::new(&statedb::Db::new()).unwrap();
    let settings = Settings {
        bookmark_every: std::time::Duration::from_millis(50),
        ..Settings::default()
    };
    ApiServer::new(
        Tracker::new(rows, 10_000, false),
        Registry::builtin(),
        Manner::Real(settings),
    )
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
    };

    cases::all(&subject).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn over_http() {
    let api = embedded();
    let tracker = api.tracker().clone();
    let server = HttpServer::bind("127.0.0.1:0".parse().unwrap(), api, HttpOptions::default())
        .await
        .unwrap();
    let url = format!("http://{}", server.address().unwrap());
    let stop = CancellationToken::new();
    let serving = tokio::spawn(server.serve(stop.clone()));
    let subject = Subject {
        client: remote(&url),
        compact: Some(Box::new(move || tracker.compact())),
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
    let Some(server) = real::start().await else {
        eprintln!("skipped: KUBEBUILDER_ASSETS names no folder with kube-apiserver and etcd");
        return;
    };
    let settings = RemoteSettings {
        qps: 0.0,
        ..RemoteSettings::default()
    };
    let target = Target::Kubeconfig(server.kubeconfig(), Vec::new());
    let client = Arc::new(RemoteClient::new(target, settings).unwrap());
    client
        .wait_connected(
            std::time::Duration::from_secs(60),
            std::time::Duration::from_millis(500),
        )
        .await
        .unwrap();

    cases::all(&Subject {
        client,
        compact: None,
    })
    .await;
}
