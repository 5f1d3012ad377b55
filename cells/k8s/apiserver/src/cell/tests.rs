// SPDX-License-Identifier: Apache-2.0

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use hive::{All, Cell, Hive, Settings};
use hive_script::CommandHandle;
use serde_json::json;
use skep_k8s_client::{Api, Client};
use skep_k8s_types::Resource;
use skep_k8s_types::slim::Service;
use statedb::Table;

use super::*;
use crate::controller::endpointslice::endpointslice_controller_cell;
use crate::controller::namespace::namespace_controller_cell;
use crate::gvr::Gvr;
use crate::server::{DeleteOptions, ListOptions, WriteOptions};

#[tokio::test]
async fn fake_client_gives_a_client_and_commands() {
    let built = Hive::new([statedb::cell(), fake_client_cell()])
        .root::<Arc<dyn Client>>()
        .root::<Arc<FakeClient>>()
        .root::<All<CommandHandle>>()
        .root::<Table<TrackedObject>>()
        .plan(Settings::new())
        .unwrap()
        .build()
        .unwrap();
    let fake = built.get::<Arc<FakeClient>>().unwrap();
    fake.add(
        "{apiVersion: v1, kind: Service, metadata: {name: web, namespace: shop}, spec: {clusterIP: 10.0.0.1}}",
    )
    .unwrap();

    let client = built.get::<Arc<dyn Client>>().unwrap();
    let services = Api::<Service>::all(client).list_all().await.unwrap();

    assert_eq!(services.items[0].metadata.name, "web");
    let commands = built.get::<All<CommandHandle>>().unwrap();
    assert!(commands.iter().any(|c| c.spec().name() == "k8s/add"));
}

fn controller_client(api: Arc<ApiServer>) -> Arc<dyn Client> {
    Arc::new(in_process_client(&api))
}

async fn until(what: &str, mut done: impl FnMut() -> bool) {
    for _ in 0..3000 {
        if done() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{what} did not happen in time");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lab_cells_serve_and_control_and_start_again() {
    let built = Hive::new([
        statedb::cell(),
        server_cell(),
        Cell::module("controller-client", "Client of the controllers").provide(controller_client),
        endpointslice_controller_cell(),
        namespace_controller_cell(),
    ])
    .override_config(|config: &mut ApiServerConfig| config.listen = "127.0.0.1:0".to_owned())
    .root::<Arc<ApiServer>>()
    .root::<Arc<Listening>>()
    .plan(Settings::new())
    .unwrap()
    .build()
    .unwrap();
    let api = built.get::<Arc<ApiServer>>().unwrap();
    let listening = built.get::<Arc<Listening>>().unwrap();
    let running = built.start().await.unwrap();
    let address = listening.address().unwrap();
    assert!(tokio::net::TcpStream::connect(address).await.is_ok());

    let options = WriteOptions::default();
    let (namespaces, services) = (Gvr::new("", "v1", "namespaces"), Gvr::new("", "v1", "services"));
    let (pods, slices) = (
        Gvr::new("", "v1", "pods"),
        Gvr::new("discovery.k8s.io", "v1", "endpointslices"),
    );
    api.create(
        &namespaces,
        "",
        json!({ "metadata": { "name": "shop" } }),
        &options,
    )
    .unwrap();
    let service = json!({ "metadata": { "name": "web" }, "spec": { "selector": { "app": "web" }, "ports": [{ "port": 80 }] } });
    api.create(&services, "shop", service, &options).unwrap();
    let pod = json!({ "metadata": { "name": "p", "labels": { "app": "web" } }, "spec": { "containers": [{ "name": "c", "image": "i" }] } });
    api.create(&pods, "shop", pod, &options).unwrap();
    let status = crate::Patch::Merge(json!({ "status": {
        "phase": "Running", "podIP": "10.1.0.1", "podIPs": [{ "ip": "10.1.0.1" }],
        "conditions": [{ "type": "Ready", "status": "True" }],
    } }));
    api.patch(&pods, "shop", "p", crate::Subresource::Status, &status, &options)
        .unwrap();
    let count = || {
        let list = api.list(&slices, Some("shop"), &ListOptions::default()).unwrap();
        list.items
            .iter()
            .map(|s| s["endpoints"].as_array().map_or(0, Vec::len))
            .sum::<usize>()
    };
    until("an endpoint", || count() == 1).await;

    api.delete(&namespaces, "", "shop", &DeleteOptions::default())
        .unwrap();
    until("the end of the namespace", || {
        api.get(&namespaces, "", "shop").is_err()
    })
    .await;
    assert!(
        api.list(&services, Some("shop"), &ListOptions::default())
            .unwrap()
            .items
            .is_empty()
    );

    let stopped = running.stop().await.unwrap();
    assert!(tokio::net::TcpStream::connect(address).await.is_err());
    let running = stopped.start().await.unwrap();
    assert!(
        tokio::net::TcpStream::connect(listening.address().unwrap())
            .await
            .is_ok()
    );
    running.stop().await.unwrap();
}

#[test]
fn refuses_settings_that_make_no_sense() {
    let config = |change: fn(&mut ApiServerConfig)| {
        let mut config = ApiServerConfig {
            listen: "127.0.0.1:0".to_owned(),
            token: String::new(),
            service_networks: vec!["10.0.0.0/16".to_owned(), "fd00::/112".to_owned()],
            node_ports: "30000-32767".to_owned(),
            history: 10,
            bookmark_every: Duration::from_secs(60),
            event_ttl: Duration::from_secs(60),
            disable_admission_plugins: vec!["ServiceAccount".to_owned()],
            service_account_issuer: "https://issuer".to_owned(),
            signing_key_file: String::new(),
            root_ca_file: String::new(),
        };
        change(&mut config);
        config.settings().map(drop)
    };

    assert_eq!(config(|_| {}), Ok(()));
    assert_eq!(
        config(|c| c.node_ports = "9-1".into()),
        Err(ConfigError::Ports("9-1".into()))
    );
    assert_eq!(
        config(|c| c.disable_admission_plugins.push("Other".into())),
        Err(ConfigError::Plugin("Other".into()))
    );
    assert!(config(|c| c.service_networks[1] = "10.1.0.0/16".into()).is_err());
    assert!(config(|c| c.service_networks[0] = "x".into()).is_err());
}

#[tokio::test]
async fn keys_and_certificates_come_from_files() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name).display().to_string();
    let (key, certificate) = (file("accounts.key"), file("ca.crt"));
    let build = || {
        let (key, certificate) = (key.clone(), certificate.clone());
        Hive::new([statedb::cell(), server_cell()])
            .override_config(move |config: &mut ApiServerConfig| {
                config.signing_key_file = key.clone();
                config.root_ca_file = certificate.clone();
            })
            .root::<Arc<ApiServer>>()
            .plan(Settings::new())
            .unwrap()
            .build()
    };

    let error = hive::error_chain(&build().map(drop).unwrap_err());
    assert!(error.contains("accounts.key"), "{error}");
    std::fs::write(&key, rcgen::KeyPair::generate().unwrap().serialize_pem()).unwrap();
    let error = hive::error_chain(&build().map(drop).unwrap_err());
    assert!(error.contains("ca.crt"), "{error}");
    std::fs::write(&certificate, "CERTIFICATE").unwrap();
    let api = build().unwrap().get::<Arc<ApiServer>>().unwrap();

    let config = api.get(&Gvr::new("", "v1", "configmaps"), "default", "kube-root-ca.crt");
    assert_eq!(config.unwrap()["data"]["ca.crt"], "CERTIFICATE");
    let made = api.request_token("default", "default", json!({})).unwrap();
    let token = made["status"]["token"].as_str().unwrap();
    let same = SigningKey::from_file(key.as_ref()).unwrap();
    assert!(same.verify::<serde_json::Value>(token).is_some());
}

// Scripts change labels that selectors are about, and look at what the cell makes of the changed object.
#[tokio::test]
async fn label_selectors_count_for_lists_of_the_fake_client_and_not_for_its_watches() {
    let fake = FakeClient::new(Db::new()).unwrap();
    let service = |name: &str, label: &str| {
        format!(
            "{{apiVersion: v1, kind: Service, metadata: {{name: {name}, namespace: shop, labels: {{{label}: x}}}}}}"
        )
    };
    fake.add(&service("kept", "app")).unwrap();
    fake.add(&service("left-out", "headless")).unwrap();
    let client = fake.client();
    let kind = Service::kind();
    let labels: skep_k8s_types::selector::Selector = "!headless".parse().unwrap();

    let list = skep_k8s_client::ListOptions {
        labels: labels.clone(),
        ..skep_k8s_client::ListOptions::default()
    };
    let page = client.list(&kind, "", &list).await.unwrap();
    assert_eq!(page.items.len(), 1);
    let watch = skep_k8s_client::WatchOptions {
        labels,
        resource_version: page.resource_version,
        ..skep_k8s_client::WatchOptions::default()
    };
    let mut events = client.watch(&kind, "", &watch).await.unwrap();
    fake.update(&service("kept", "headless"), false).unwrap();

    let event = events.next().await.unwrap().unwrap();
    let modified = skep_k8s_client::Change::Modified;
    assert!(
        matches!(&event, skep_k8s_client::RawEvent::Object(change, _) if *change == modified),
        "{event:?}"
    );
}
