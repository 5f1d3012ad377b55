// SPDX-License-Identifier: Apache-2.0

use std::sync::Arc;

use jiff::SignedDuration;
use serde_json::{Value, json};
use statedb::Row;

use super::{LocalPod, NamespaceRow};
use crate::clock::{Clock, FixedClock};
use crate::slim::{Namespace, Pod};

fn clock() -> Arc<dyn Clock> {
    Arc::new(FixedClock {
        now: "2000-01-01T10:30:00Z".parse().unwrap(),
        ago: SignedDuration::from_mins(1),
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
fn pod_as_yaml_has_lower_case_keys_but_untouched_labels() {
    let yaml = pod().to_yaml().unwrap();

    assert_eq!(yaml["pod"]["objectmeta"]["labels"]["App"], "Web");
    assert_eq!(
        yaml["pod"]["spec"]["containers"][0]["ports"][0]["containerport"],
        80
    );
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
        "updatedat: soon",
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
