// SPDX-License-Identifier: Apache-2.0

//! Registration against the embedded API server.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::sync::Arc;

use hive::{Cell, Hive, Settings};
use serde_json::{Value, json};
use skep_k8s_client::testing::{Fault, FaultyClient, Verb};
use skep_k8s_client::{Client, Status, WriteOptions};
use skep_k8s_crds::{Outcome, RegisterError, cell, definitions, register, register_all};
use skep_k8s_memory::{ApiServer, Mode, Registry, Rows, Tracker, in_process_client};
use skep_k8s_types::Kind;

const DEFINITIONS: Kind = Kind::new(
    "apiextensions.k8s.io",
    "v1",
    "CustomResourceDefinition",
    "customresourcedefinitions",
    false,
);

fn server() -> ApiServer {
    let rows = Rows::new(&statedb::Db::new()).unwrap();
    let tracker = Tracker::new(rows, 1000, false);
    ApiServer::new(
        tracker,
        Registry::builtin(),
        Mode::Real(skep_k8s_memory::Settings::default()),
    )
}

fn client() -> Arc<dyn Client> {
    Arc::new(in_process_client(&server()))
}

async fn read(client: &dyn Client, name: &str) -> Value {
    let object = client.get(&DEFINITIONS, "", name).await.unwrap();
    (*object.to_value().unwrap()).clone()
}

async fn create(client: &dyn Client, object: Value) -> Value {
    let made = client
        .create(&DEFINITIONS, "", object, &WriteOptions::default())
        .await
        .unwrap();
    (*made.to_value().unwrap()).clone()
}

#[tokio::test(start_paused = true)]
async fn creates_all_definitions_and_leaves_them_alone_the_next_time() {
    let client = client();
    let mut all = definitions::cilium();
    all.extend(definitions::multi_cluster());

    register_all(&*client, &all).await.unwrap();

    for definition in &all {
        let before = read(&*client, &definition.name()).await;
        assert_eq!(before["status"]["conditions"][1]["status"], "True");
        assert_eq!(register(&*client, definition).await.unwrap(), Outcome::UpToDate);
        assert_eq!(
            read(&*client, &definition.name()).await,
            before,
            "not written again"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn replaces_an_older_definition() {
    let client = client();
    let node = definitions::cilium_node();
    let mut older = node.to_object();
    older["metadata"]["labels"] = json!({ "io.cilium.k8s.crd.schema.version": "1.31.11", "mine": "lost" });
    older["metadata"]["annotations"] = json!({ "mine": "kept" });
    older["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"] = json!({});
    older["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["required"] = json!([]);
    create(&*client, older).await;

    assert_eq!(register(&*client, &node).await.unwrap(), Outcome::Updated);

    let found = read(&*client, &node.name()).await;
    assert_eq!(
        found["metadata"]["labels"],
        node.to_object()["metadata"]["labels"]
    );
    assert_eq!(found["metadata"]["annotations"]["mine"], "kept");
    assert_eq!(found["spec"]["preserveUnknownFields"], false);
    assert!(found["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"].is_object());
}

#[tokio::test(start_paused = true)]
async fn never_replaces_a_newer_definition() {
    let client = client();
    let node = definitions::cilium_node();
    let mut newer = node.to_object();
    newer["metadata"]["labels"] = json!({ "io.cilium.k8s.crd.schema.version": "1.99.0" });
    newer["spec"]["versions"][0]["schema"]["openAPIV3Schema"] =
        json!({ "type": "object", "description": "theirs" });
    create(&*client, newer).await;

    assert_eq!(register(&*client, &node).await.unwrap(), Outcome::UpToDate);

    let found = read(&*client, &node.name()).await;
    assert_eq!(
        found["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["description"],
        "theirs"
    );
}

#[tokio::test(start_paused = true)]
async fn names_that_another_definition_has_are_an_error() {
    let client = client();
    let mut other = definitions::cilium_node().to_object();
    other["metadata"]["name"] = "beehives.cilium.io".into();
    other["spec"]["names"] = json!({ "plural": "beehives", "kind": "Beehive", "shortNames": ["cn"] });
    create(&*client, other).await;

    let error = register(&*client, &definitions::cilium_node()).await.unwrap_err();

    assert!(matches!(&error, RegisterError::Names { reason, .. } if reason == "ShortNamesConflict"));
    assert_eq!(
        error.to_string(),
        "the names of CRD ciliumnodes.cilium.io are not accepted: ShortNamesConflict: \"cn\" is already in use"
    );
}

fn faulty() -> Arc<FaultyClient> {
    FaultyClient::new(client())
}

/// Serves the definitions only after this number of reads.
fn establish_after(client: &FaultyClient, reads: usize) {
    client.fail_times(usize::MAX, Verb::Create, Fault::AnswerWithoutStatus);
    client.fail_times(reads, Verb::Get, Fault::AnswerWithoutStatus);
}

#[tokio::test(start_paused = true)]
async fn waits_until_the_server_serves_it() {
    let client = faulty();
    establish_after(&client, 7);
    let start = tokio::time::Instant::now();

    let outcome = register(&*client, &definitions::cilium_identity()).await.unwrap();

    assert_eq!(outcome, Outcome::Created);
    assert!(
        start.elapsed() >= std::time::Duration::from_secs(3),
        "{:?}",
        start.elapsed()
    );

    let client = faulty();
    establish_after(&client, usize::MAX);
    let error = register(&*client, &definitions::cilium_identity())
        .await
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "CRD ciliumidentities.cilium.io is not established after 60s"
    );
}

#[tokio::test(start_paused = true)]
async fn tries_again_after_conflicts() {
    let older = || {
        let mut older = definitions::cilium_node().to_object();
        older["metadata"]["labels"] = json!({});
        older
    };
    let client = faulty();
    client.fail_times(3, Verb::Update, Fault::conflict());
    create(&**client.inner(), older()).await;
    assert_eq!(
        register(&*client, &definitions::cilium_node()).await.unwrap(),
        Outcome::Updated
    );

    let client = faulty();
    client.fail_times(usize::MAX, Verb::Update, Fault::conflict());
    create(&**client.inner(), older()).await;
    let error = register(&*client, &definitions::cilium_node()).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "unable to update CRD ciliumnodes.cilium.io: it kept changing for 60s"
    );
}

#[tokio::test(start_paused = true)]
async fn another_writer_may_win() {
    let client = faulty();
    let exists = Status::new(409, "AlreadyExists", "AlreadyExists");
    client.fail_times(1, Verb::Create, Fault::AnsweredWith(exists));
    establish_after(&client, usize::MAX);

    let outcome = register(&*client, &definitions::cilium_node()).await.unwrap();

    assert_eq!(outcome, Outcome::CreatedByAnother);
}

fn operator(client: Arc<dyn Client>) -> Hive {
    let provided = Cell::module("client", "A client").provide(move || client.clone());
    Hive::new([cell(), provided])
}

#[tokio::test(start_paused = true)]
async fn a_program_registers_what_its_features_need() {
    let client = client();
    let settings = Settings::new().flag("enable-egress-gateway", "true");

    let running = hive::testing::start_with(operator(client.clone()), settings).await;

    read(&*client, "ciliumegressgatewaypolicies.cilium.io").await;
    let error = client
        .get(&DEFINITIONS, "", "ciliumbgpnodeconfigs.cilium.io")
        .await;
    assert!(error.is_err_and(|error| error.is_not_found()));
    hive::testing::stop(running).await;
}

#[tokio::test(start_paused = true)]
async fn a_program_can_leave_it_to_others() {
    let client = client();
    let settings = Settings::new().flag("skip-crd-creation", "true");

    let running = hive::testing::start_with(operator(client.clone()), settings).await;

    let error = client.get(&DEFINITIONS, "", "ciliumidentities.cilium.io").await;
    assert!(error.is_err_and(|error| error.is_not_found()));
    hive::testing::stop(running).await;
}

#[tokio::test(start_paused = true)]
async fn the_start_of_a_program_fails_with_the_first_definition() {
    let client = faulty();
    client.fail_times(usize::MAX, Verb::Create, Fault::forbidden());

    let built = hive::testing::plan(operator(client), Settings::new())
        .build()
        .unwrap();
    let error = match built.start().await {
        Ok(_) => panic!("the start must fail"),
        Err(error) => hive::error_chain(&error).to_string(),
    };

    assert!(
        error.contains("unable to create CRDs: unable to create CRD ciliumidentities.cilium.io: Forbidden"),
        "{error}"
    );
}
