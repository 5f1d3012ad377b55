// SPDX-License-Identifier: Apache-2.0

use std::sync::Arc;

use futures::StreamExt;
use hive::{All, Hive, Settings};
use hive_script::CommandHandle;
use skep_k8s_client::{Api, Client};
use skep_k8s_types::Resource;
use skep_k8s_types::slim::Service;
use statedb::{Db, Table};

use super::*;

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
