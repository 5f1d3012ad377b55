// SPDX-License-Identifier: Apache-2.0

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use hive::{Cell, Hive};
use jiff::SignedDuration;
use serde_json::{Value, json};
use skep_base_settings::NodeName;
use skep_k8s_client::{ApiError, Client, DisabledClient, ListOptions, RawPage, RawWatch, WatchOptions};
use skep_k8s_types::slim::{Namespace, Pod};
use skep_k8s_types::{Kind, RawObject};
use statedb::clock::Clock;
use statedb::testing::FixedClock;
use statedb::{Db, Row, Table, readiness};

use super::{LocalPod, NamespaceRow};

fn clock() -> Arc<dyn Clock> {
    Arc::new(FixedClock {
        now: "2000-01-01T10:30:00Z".parse().unwrap(),
        age: SignedDuration::from_mins(1),
    })
}

fn pod() -> LocalPod {
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": "web-0", "namespace": "shop", "uid": "u-1", "resourceVersion": "5", "labels": {"App": "Web"}},
        "spec": {
            "nodeName": "testnode", "hostNetwork": true,
            "containers": [
                {"name": "web", "ports": [{"containerPort": 80, "protocol": "TCP", "name": "http"},
                                          {"containerPort": 53, "protocol": "UDP"}]},
                {"name": "log"},
            ],
        },
        "status": {"phase": "Running", "podIP": "10.0.0.5", "podIPs": [{"ip": "10.0.0.5"}, {"ip": "fd00::5"}]},
    }))
    .unwrap();
    LocalPod::new(&Arc::new(pod), &clock())
}

fn namespace(value: Value) -> NamespaceRow {
    NamespaceRow::new(&serde_json::from_value::<Namespace>(value).unwrap(), &clock())
}

#[test]
fn pod_shows_addresses_containers_and_age() {
    assert_eq!(
        LocalPod::header(),
        [
            "Name",
            "UID",
            "HostNetwork",
            "PodIPs",
            "Containers",
            "Phase",
            "Age"
        ]
    );
    assert_eq!(
        pod().cells(),
        [
            "shop/web-0",
            "u-1",
            "true",
            "10.0.0.5, fd00::5",
            "web (80/TCP (http),53/UDP), log",
            "Running",
            "60s"
        ]
    );
}

#[test]
fn pod_as_json_is_the_object_with_the_time() {
    let json = pod().to_json().unwrap();

    let keys: Vec<&String> = json.as_object().unwrap().keys().collect();
    assert_eq!(
        keys,
        ["kind", "apiVersion", "metadata", "spec", "status", "updatedAt"]
    );
    assert_eq!(json["metadata"]["uid"], "u-1");
    assert_eq!(json["updatedAt"], "2000-01-01T10:30:00Z");
}

#[test]
fn pod_as_yaml_has_all_fields_in_lower_case_but_untouched_labels() {
    let yaml = pod().to_yaml().unwrap();

    assert_eq!(yaml["pod"]["objectmeta"]["ownerreferences"], json!([]));
    assert_eq!(yaml["pod"]["status"]["starttime"], json!(null));
    assert!(LocalPod::is_yaml_time("updatedAt") && !LocalPod::is_yaml_time("starttime"));

    assert_eq!(yaml["pod"]["objectmeta"]["labels"]["App"], "Web");
    assert_eq!(
        yaml["pod"]["spec"]["containers"][0]["ports"][0]["containerport"],
        80
    );
    assert_eq!(yaml["updatedAt"], "2000-01-01T10:30:00Z");
    let read = LocalPod::from_yaml(&yaml.to_string()).unwrap();
    assert_eq!(read.pod, pod().pod);
    assert_eq!(read.updated_at.at(), pod().updated_at.at());
}

#[test]
fn odd_yaml_is_an_error_not_a_panic() {
    for text in [
        "- a",
        "pod: 7",
        "pod: {spec: []}",
        "updatedAt: soon",
        "x",
        "pod: {objectmeta: {labels: 3}}",
    ] {
        assert!(LocalPod::from_yaml(text).is_err(), "{text}");
    }
    LocalPod::from_yaml("").unwrap();
    NamespaceRow::from_yaml("").unwrap();
}

#[test]
fn namespace_shows_sorted_labels() {
    let row = namespace(json!({"metadata": {"name": "shop", "labels": {"b": "2", "a": "1"}}}));

    assert_eq!(
        NamespaceRow::header(),
        ["Namespace", "Labels", "Annotations", "Age"]
    );
    assert_eq!(row.cells(), ["shop", "a=1, b=2", "", "60s"]);
    assert_eq!(
        row.to_json().unwrap(),
        json!({"name": "shop", "labels": {"a": "1", "b": "2"}, "updatedAt": "2000-01-01T10:30:00Z"})
    );
    assert_eq!(
        NamespaceRow::from_yaml(&row.to_yaml().unwrap().to_string())
            .unwrap()
            .cells()[..3],
        row.cells()[..3]
    );
}

/// A cluster with one namespace and one pod of this node.
struct Cluster;

#[async_trait]
impl Client for Cluster {
    fn is_enabled(&self) -> bool {
        true
    }

    async fn kinds(&self) -> Result<Vec<Kind>, ApiError> {
        Err(ApiError::Disabled)
    }

    async fn list(&self, kind: &Kind, _: &str, options: &ListOptions) -> Result<RawPage, ApiError> {
        let fields = options.fields.to_string();
        assert_eq!(
            fields,
            if kind.plural == "pods" {
                "spec.nodeName=testnode"
            } else {
                ""
            }
        );
        let object = json!({"metadata": {"name": "one", "namespace": "shop"}});
        let items = vec![RawObject::from_value(Arc::new(object))];
        Ok(RawPage {
            items,
            resource_version: "1".into(),
            continue_token: String::new(),
        })
    }

    async fn watch(&self, _: &Kind, _: &str, _: &WatchOptions) -> Result<RawWatch, ApiError> {
        Ok(Box::pin(futures::stream::pending()))
    }
}

fn hive_of(client: Arc<dyn Client>) -> Hive {
    let given = Cell::module("given", "Given")
        .provide(Db::new)
        .provide(move || client.clone())
        .provide(|| NodeName::new("testnode"))
        .provide(clock);
    Hive::new([given, super::cell(), readiness::cell()])
        .root::<Db>()
        .root::<Table<LocalPod>>()
        .root::<Table<NamespaceRow>>()
}

#[tokio::test]
async fn cell_fills_both_tables_and_reports_under_known_names() {
    let running = hive::testing::start(hive_of(Arc::new(Cluster))).await;
    let db = running.get::<Db>().unwrap();

    readiness::wait_initialized(&db, None, Duration::from_secs(30))
        .await
        .unwrap();

    assert_eq!(
        db.table("k8s-pods").unwrap().rows(&db.read())[0].cells()[0],
        "shop/one"
    );
    assert_eq!(
        db.table("k8s-namespaces").unwrap().rows(&db.read())[0].cells()[3],
        "60s"
    );
    for table in ["k8s-namespaces", "k8s-pods"] {
        let id = format!("k8s-tables.job-k8s-reflector-{table}-daemon-k8s");
        let reported = async {
            loop {
                let entry = running
                    .health()
                    .entries()
                    .into_iter()
                    .find(|entry| entry.id.to_string() == id);
                if entry.is_some_and(|entry| entry.message == "1 upserted, 0 deleted, 1 total objects") {
                    return;
                }
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), reported)
            .await
            .unwrap();
    }
    running.stop().await.unwrap();
}

#[tokio::test]
async fn tables_without_cluster_are_empty_and_complete() {
    let running = hive::testing::start(hive_of(Arc::new(DisabledClient))).await;
    let db = running.get::<Db>().unwrap();

    readiness::wait_initialized(&db, None, Duration::from_millis(10))
        .await
        .unwrap();

    assert!(db.table("k8s-pods").unwrap().rows(&db.read()).is_empty());
}
