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
use skep_k8s_apiserver::{
    ApiServer, HttpOptions, HttpServer, Manner, Registry, Rows, Settings, Tracker, in_process_client,
};
use skep_k8s_client::Client;
use skep_k8s_client::remote::{RemoteClient, Settings as RemoteSettings, Target};
use tokio_util::sync::CancellationToken;

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

    of_its_own_processes(real::start(programs), true).await;
}

/// What `real_server` does, with a program that refuses the flags that a real server refuses.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stand_in_for_a_real_server() {
    of_its_own_processes(real::start(real::stand_in()), false).await;
}

async fn of_its_own_processes(server: real::RealServer, is_real: bool) {
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
        is_real,
    };
    cases::all(&subject).await;
}

/// Mistakes that a real server ends at: the stand-in must, too, or tests with it show nothing.
#[test]
fn the_stand_in_refuses_what_a_real_server_refuses() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    let pair = rcgen::KeyPair::generate().unwrap();
    std::fs::write(at("private"), pair.serialize_pem()).unwrap();
    std::fs::write(at("public"), pair.public_key_pem()).unwrap();
    let said = |verify: &str, sign: &str, more: &str| {
        let (_, program) = real::stand_in();
        let output = std::process::Command::new(program)
            .args([
                "--etcd-servers=http://127.0.0.1:1",
                "--service-account-issuer=https://127.0.0.1",
                &format!("--service-account-key-file={}", at(verify)),
                &format!("--service-account-signing-key-file={}", at(sign)),
                more,
            ])
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8_lossy(&output.stderr).into_owned()
    };

    assert_eq!(
        said("private", "private", "--secure-port=0"),
        "Error: data does not contain any valid RSA or ECDSA public keys\n"
    );
    assert!(said("public", "public", "--secure-port=0").contains("a valid RSA or ECDSA private key"));
    assert_eq!(
        said("public", "private", "--bogus=1"),
        "Error: unknown flag: --bogus\n"
    );
    assert_eq!(
        said("public", "private", "--secure-port=0"),
        "W AnonymousAuth is not allowed with the AlwaysAllow authorizer. Resetting AnonymousAuth to false. You should \
         use a different authorizer\nError: --cert-dir must be specified\n"
    );
}
