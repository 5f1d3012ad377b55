// SPDX-License-Identifier: Apache-2.0

//! Every field of the objects that decide about traffic, given every sort of wrong value.

use std::sync::Arc;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::{CiliumLocalRedirectPolicy, CiliumNode, EndpointSlice, Namespace, Node, Pod, Service};
use crate::{RawObject, Resource};

fn service() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {
            "name": "web", "namespace": "shop", "uid": "u", "resourceVersion": "7", "generateName": "w",
            "deletionTimestamp": "2026-01-02T03:04:05Z",
            "labels": {"app": "web"}, "annotations": {"service.cilium.io/global": "true"},
            "ownerReferences": [{"apiVersion": "v1", "kind": "X", "name": "x", "uid": "y", "controller": true}],
        },
        "spec": {
            "ports": [{"name": "http", "protocol": "TCP", "port": 80, "targetPort": "web", "nodePort": 30080}],
            "selector": {"app": "web"}, "clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1"], "type": "LoadBalancer",
            "externalIPs": ["192.0.2.1"], "sessionAffinity": "ClientIP", "loadBalancerIP": "192.0.2.2",
            "loadBalancerSourceRanges": ["10.0.0.0/8"], "externalTrafficPolicy": "Local", "healthCheckNodePort": 31000,
            "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 60}}, "ipFamilies": ["IPv4"],
            "ipFamilyPolicy": "SingleStack", "loadBalancerClass": "x/y", "internalTrafficPolicy": "Cluster",
            "trafficDistribution": "PreferClose",
        },
        "status": {
            "loadBalancer": {"ingress": [{"ip": "192.0.2.3", "hostname": "h", "ipMode": "VIP",
                                          "ports": [{"port": 80, "protocol": "TCP", "error": "e"}]}]},
            "conditions": [{"type": "t", "status": "True", "observedGeneration": 1, "reason": "r", "message": "m",
                            "lastTransitionTime": "2026-01-02T03:04:05Z"}],
        },
    })
}

fn slice() -> Value {
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {"name": "web-1", "namespace": "shop", "labels": {"kubernetes.io/service-name": "web"}},
        "addressType": "IPv4",
        "endpoints": [{
            "addresses": ["10.1.0.1"], "conditions": {"ready": true, "serving": true, "terminating": false},
            "deprecatedTopology": {"kubernetes.io/hostname": "n1"}, "nodeName": "n1", "zone": "z",
            "hints": {"forZones": [{"name": "z"}]},
        }],
        "ports": [{"name": "http", "protocol": "TCP", "port": 8080}],
    })
}

/// Paths of all fields and elements.
fn paths(value: &Value, at: &str, found: &mut Vec<String>) {
    if !at.is_empty() {
        found.push(at.to_owned());
    }
    match value {
        Value::Object(map) => map.iter().for_each(|(key, value)| {
            paths(
                value,
                &format!("{at}/{}", key.replace('~', "~0").replace('/', "~1")),
                found,
            );
        }),
        Value::Array(list) => {
            list.iter()
                .enumerate()
                .for_each(|(index, value)| paths(value, &format!("{at}/{index}"), found));
        }
        _ => {}
    }
}

fn wrong_values() -> Vec<Value> {
    vec![
        Value::Null,
        json!(true),
        json!(-1),
        json!(70000),
        json!(1e300),
        json!(u64::MAX),
        json!(""),
        json!("x".repeat(1 << 16)),
        json!("\u{0}\u{202e}\u{1f600}"),
        json!([]),
        json!([null]),
        json!([[["x"]]]),
        json!({}),
        json!({"x": null}),
        json!({"": {"": []}}),
    ]
}

fn sort(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "list",
        Value::Object(_) => "object",
    }
}

/// Puts every wrong value at every place: a value of another sort must be refused with the path, or be one that
/// Kubernetes takes as well.
fn fuzz<T: Resource>(good: &Value) {
    RawObject::from_value(Arc::new(good.clone()))
        .decode::<T>()
        .unwrap();
    let mut places = Vec::new();
    paths(good, "", &mut places);
    for place in &places {
        for wrong in wrong_values() {
            let mut object = good.clone();
            let right = object.pointer(place).unwrap().clone();
            *object.pointer_mut(place).unwrap() = wrong.clone();

            let from_value = RawObject::from_value(Arc::new(object.clone())).decode::<T>();
            let from_text = RawObject::from_json(object.to_string().into()).decode::<T>();

            assert_eq!(from_value.is_ok(), from_text.is_ok(), "{place} {wrong}");
            match from_text {
                Err(error) => {
                    assert!(
                        error.to_string().len() < 1000,
                        "{place}: message of {} bytes",
                        error.to_string().len()
                    );
                    let top = place.trim_start_matches('/').split('/').next().unwrap();
                    assert!(error.path.starts_with(top), "{place}: path `{}`", error.path);
                }
                Ok(_) => {
                    let ignored = place == "/apiVersion" || place == "/kind";
                    let either = place.ends_with("/targetPort");
                    let same = sort(&wrong) == sort(&right) || wrong.is_null();
                    assert!(
                        ignored || either || same,
                        "{place} accepts {} for {}",
                        sort(&wrong),
                        sort(&right)
                    );
                }
            }
        }
    }
}

#[test]
fn every_field_of_a_service_survives_wrong_values() {
    fuzz::<Service>(&service());
}

#[test]
fn every_field_of_a_slice_survives_wrong_values() {
    fuzz::<EndpointSlice>(&slice());
}

#[test]
fn every_field_of_the_other_kinds_survives_wrong_values() {
    fuzz::<Namespace>(&json!({"metadata": {"name": "shop", "labels": {"a": "b"}}}));
    fuzz::<Node>(&json!({
        "metadata": {"name": "n1"},
        "spec": {"podCIDR": "10.1.0.0/24", "podCIDRs": ["10.1.0.0/24"], "providerID": "p",
                 "taints": [{"key": "k", "value": "v", "effect": "NoExecute", "timeAdded": "2026-01-02T03:04:05Z"}]},
        "status": {"conditions": [{"type": "Ready", "status": "True", "reason": "r"}],
                   "addresses": [{"type": "InternalIP", "address": "192.0.2.1"}]},
    }));
    fuzz::<Pod>(&json!({
        "metadata": {"name": "web-0"},
        "spec": {
            "initContainers": [{"name": "i"}], "serviceAccountName": "s", "nodeName": "n1", "hostNetwork": true,
            "containers": [{"name": "c", "image": "i", "volumeMounts": [{"mountPath": "/x"}],
                            "ports": [{"name": "p", "hostPort": 1, "containerPort": 2, "protocol": "UDP", "hostIP": "::"}]}],
        },
        "status": {
            "phase": "Running", "hostIP": "192.0.2.1", "podIP": "10.1.0.2", "podIPs": [{"ip": "10.1.0.2"}],
            "startTime": "2026-01-02T03:04:05Z", "qosClass": "BestEffort",
            "conditions": [{"type": "Ready", "status": "True", "lastProbeTime": "2026-01-02T03:04:05Z",
                            "lastTransitionTime": "2026-01-02T03:04:05Z", "reason": "r", "message": "m"}],
            "containerStatuses": [{"state": {"running": {"startedAt": "2026-01-02T03:04:05Z"}}, "containerID": "x://y"}],
        },
    }));
    fuzz::<CiliumLocalRedirectPolicy>(&json!({
        "metadata": {"name": "dns"},
        "spec": {
            "redirectFrontend": {
                "addressMatcher": {"ip": "192.0.2.9", "toPorts": [{"port": "53", "protocol": "UDP", "name": "dns"}]},
                "serviceMatcher": {"serviceName": "s", "namespace": "n", "toPorts": [{"port": "53", "protocol": "UDP"}]},
            },
            "redirectBackend": {
                "localEndpointSelector": {"matchLabels": {"a": "b"},
                                          "matchExpressions": [{"key": "k", "operator": "In", "values": ["v"]}]},
                "toPorts": [{"port": "53", "protocol": "UDP"}],
            },
            "skipRedirectFromBackend": true, "description": "d",
        },
        "status": {},
    }));
    fuzz::<CiliumNode>(&json!({
        "metadata": {"name": "n1"},
        "spec": {"bootid": "b", "addresses": [{"type": "InternalIP", "ip": "192.0.2.1"}], "health": {"ipv4": "10.1.0.9"},
                 "encryption": {"key": 3}, "ipam": {"podCIDRs": ["10.1.0.0/24"],
                 "pools": {"requested": [{"pool": "p", "needed": {}}], "allocated": [{"pool": "p", "cidrs": ["c"]}]}}},
        "status": {"ipam": {"operator-status": {"error": "e"}}},
    }));
}

#[test]
fn what_is_decoded_is_encoded_again() {
    let decoded = RawObject::from_value(Arc::new(slice()))
        .decode::<EndpointSlice>()
        .unwrap();

    let mut encoded = serde_json::to_value(&*decoded).unwrap();
    encoded["apiVersion"] = "discovery.k8s.io/v1".into();
    encoded["kind"] = "EndpointSlice".into();

    assert_eq!(encoded, slice());
}

#[test]
fn frequent_objects_stay_small() {
    // 50,000 services with 5 backends each in flight must leave room in 220 MiB.
    assert!(size_of::<Service>() <= 720, "{}", size_of::<Service>());
    assert!(
        size_of::<EndpointSlice>() <= 330,
        "{}",
        size_of::<EndpointSlice>()
    );
    assert!(
        size_of::<super::Endpoint>() <= 96,
        "{}",
        size_of::<super::Endpoint>()
    );
}

#[test]
fn fields_that_no_reader_needs_are_dropped() {
    let mut object = service();
    object["metadata"]["annotations"]["kubectl.kubernetes.io/last-applied-configuration"] = "{}".into();
    object["metadata"]["managedFields"] = json!([{"manager": "kubectl"}]);

    let decoded = RawObject::from_value(Arc::new(object))
        .decode::<Service>()
        .unwrap();

    assert_eq!(decoded.metadata.annotations.len(), 1);
    assert!(decoded.metadata.owner_references.is_empty());
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        ".{0,40}".prop_map(Value::from),
    ];
    let keys = prop_oneof![
        Just("metadata"),
        Just("name"),
        Just("labels"),
        Just("spec"),
        Just("ports"),
        Just("port"),
        Just("endpoints"),
        Just("addresses"),
        Just("conditions"),
        Just("hints"),
        Just("forZones"),
        Just("clusterIPs"),
        Just("status"),
        Just("loadBalancer"),
        Just("ingress"),
        Just("targetPort"),
        Just("x"),
    ];
    leaf.prop_recursive(6, 64, 5, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((keys.clone(), inner), 0..5).prop_map(|pairs| pairs
                .into_iter()
                .map(|(key, value)| (key.to_owned(), value))
                .collect()),
        ]
    })
}

proptest! {
    #[test]
    fn nothing_panics_on_any_json(value in any_json()) {
        let raw = RawObject::from_json(value.to_string().into());
        let _ = raw.decode::<Service>();
        let _ = raw.decode::<EndpointSlice>();
        let _ = raw.decode::<Pod>();
        let _ = super::normalize(&value);
    }

    #[test]
    fn nothing_panics_on_any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let raw = RawObject::from_json(bytes.into());
        let _ = raw.decode::<Service>();
        let _ = raw.to_value();
    }
}
