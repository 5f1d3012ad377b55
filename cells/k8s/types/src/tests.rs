// SPDX-License-Identifier: Apache-2.0

use serde_json::json;

use crate::slim::{EndpointSlice, Service, normalize};
use crate::{RawObject, Resource};

fn decode<T: Resource>(value: serde_json::Value) -> Result<std::sync::Arc<T>, crate::DecodeError> {
    RawObject::from_value(std::sync::Arc::new(value)).decode()
}

#[test]
fn null_is_the_zero_value_everywhere() {
    let slice: std::sync::Arc<EndpointSlice> = decode(json!({
        "metadata": {"name": "web-1", "labels": null, "managedFields": [{"manager": "x"}]},
        "addressType": null,
        "endpoints": [null, {"addresses": null, "conditions": null, "nodeName": null, "hints": null}],
        "ports": null,
    }))
    .unwrap();

    assert_eq!(slice.metadata.name, "web-1");
    assert_eq!(slice.endpoints.len(), 2);
    assert!(slice.ports.is_empty());
}

#[test]
fn normalized_service_prints_what_the_api_always_prints() {
    let service = json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": "web", "namespace": "shop", "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"ports": [{"port": 80, "protocol": "TCP"}], "allocateLoadBalancerNodePorts": true},
    });

    assert_eq!(
        normalize(&service).unwrap().unwrap(),
        json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {"name": "web", "namespace": "shop"},
            "spec": {"ports": [{"port": 80, "protocol": "TCP", "targetPort": 0}]},
            "status": {"loadBalancer": {}},
        })
    );
}

#[test]
fn missing_lists_are_null_and_empty_ones_are_empty() {
    let slice = json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": {"name": "x"},
        "addressType": "IPv4", "endpoints": [{"addresses": []}, {}],
    });
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}});

    let slice = normalize(&slice).unwrap().unwrap();
    let pod = normalize(&pod).unwrap().unwrap();

    assert_eq!(
        slice["endpoints"],
        json!([{"addresses": [], "conditions": {}}, {"addresses": null, "conditions": {}}])
    );
    assert_eq!(slice["ports"], json!(null));
    assert_eq!(pod["spec"], json!({"containers": null}));
}

#[test]
fn metadata_is_cut_down_only_for_types_that_are_slim_as_a_whole() {
    let metadata = json!({
        "name": "x", "generateName": "x-", "generation": 3, "finalizers": ["f"], "creationTimestamp": null,
        "managedFields": [{"manager": "m"}],
    });
    let object =
        |version: &str, kind: &str| json!({"apiVersion": version, "kind": kind, "metadata": metadata});

    let pod = normalize(&object("v1", "Pod")).unwrap().unwrap();
    let node = normalize(&object("cilium.io/v2", "CiliumNode")).unwrap().unwrap();

    assert_eq!(pod["metadata"], json!({"name": "x", "generateName": "x-"}));
    assert_eq!(
        node["metadata"],
        json!({"name": "x", "generateName": "x-", "generation": 3, "finalizers": ["f"]})
    );
}

#[test]
fn wrong_type_names_object_and_field() {
    let error = decode::<Service>(json!({
        "metadata": {"name": "web", "namespace": "shop"},
        "spec": {"clusterIPs": ["10.0.0.1", 7]},
    }))
    .unwrap_err();

    assert_eq!(
        error.to_string(),
        "Service shop/web: spec.clusterIPs[1]: invalid type: integer `7`, expected a string"
    );
}
