// SPDX-License-Identifier: Apache-2.0

//! Objects with any field replaced by anything: an error that names the object, or something that holds together.

use std::sync::Arc;

use proptest::prelude::*;
use serde_json::{Value, json};
use skep_k8s_types::slim::{EndpointSlice, Labels, Pod, Service};
use skep_k8s_types::{RawObject, Resource};

use super::rules;
use crate::convert::{Interner, Rules, endpoint_slice, host_port_services, is_exposed_on, service};

fn full_service() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {
            "namespace": "shop", "name": "web", "uid": "u", "resourceVersion": "1",
            "labels": {"app": "web"},
            "annotations": {
                "service.cilium.io/type": "LoadBalancer",
                "service.cilium.io/node-selector": "a in (b)",
                "service.cilium.io/forwarding-mode": "dsr",
                "service.kubernetes.io/topology-mode": "auto",
            },
        },
        "spec": {
            "type": "LoadBalancer", "clusterIP": "10.96.0.10", "clusterIPs": ["10.96.0.10", "fd00::10"],
            "ipFamilies": ["IPv4", "IPv6"], "ipFamilyPolicy": "PreferDualStack",
            "ports": [
                {"name": "http", "port": 80, "protocol": "TCP", "nodePort": 30080, "targetPort": "http"},
                {"name": "dns", "port": 53, "protocol": "UDP", "nodePort": 30053, "targetPort": 53},
            ],
            "selector": {"app": "web"}, "externalIPs": ["198.51.100.1"],
            "sessionAffinity": "ClientIP", "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 10}},
            "loadBalancerSourceRanges": ["10.0.0.0/8"], "externalTrafficPolicy": "Local",
            "internalTrafficPolicy": "Cluster", "healthCheckNodePort": 31000, "loadBalancerClass": "c",
            "trafficDistribution": "PreferClose",
        },
        "status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.1", "ipMode": "VIP", "hostname": "h"}]}},
    })
}

fn full_slice() -> Value {
    json!({
        "metadata": {
            "namespace": "shop", "name": "web-x1", "labels": {"kubernetes.io/service-name": "web"},
            "annotations": {"service.cilium.io/weight": "30"},
        },
        "addressType": "IPv4",
        "endpoints": [{
            "addresses": ["10.1.0.1", "10.1.0.2"],
            "conditions": {"ready": true, "serving": true, "terminating": false},
            "deprecatedTopology": {"kubernetes.io/hostname": "n1"},
            "nodeName": "n1", "zone": "a", "hints": {"forZones": [{"name": "a"}]},
        }],
        "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
    })
}

fn full_pod() -> Value {
    json!({
        "metadata": {"namespace": "shop", "name": "web-0", "uid": "u"},
        "spec": {"containers": [{"name": "c", "ports": [
            {"name": "http", "hostPort": 80, "containerPort": 8080, "protocol": "TCP", "hostIP": "127.0.0.1"},
        ]}]},
        "status": {"phase": "Running", "podIP": "10.1.0.1", "podIPs": [{"ip": "10.1.0.1"}]},
    })
}

/// JSON pointers of every field of a value, itself left out.
fn pointers(value: &Value) -> Vec<String> {
    fn walk(value: &Value, at: &str, out: &mut Vec<String>) {
        let children: Vec<(String, &Value)> = match value {
            Value::Object(map) => map
                .iter()
                .map(|(k, v)| (k.replace('~', "~0").replace('/', "~1"), v))
                .collect(),
            Value::Array(list) => list.iter().enumerate().map(|(i, v)| (i.to_string(), v)).collect(),
            _ => Vec::new(),
        };
        for (key, child) in children {
            let path = format!("{at}/{key}");
            walk(child, &path, out);
            out.push(path);
        }
    }
    let mut out = Vec::new();
    walk(value, "", &mut out);
    out
}

fn anything() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (-1i64..70000).prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        ".{0,40}".prop_map(Value::from),
        prop::sample::select(vec![
            "",
            "None",
            "TCP",
            "QUIC",
            "0.0.0.0",
            "::",
            "::ffff:10.0.0.1",
            "256.0.0.1",
            "127.0.0.1",
            "fe80::1%eth0",
            "10.0.0.0/33",
            "-1",
            "65536",
            "a in (",
            "!",
            "Local",
            "IPv6",
            "192.192.192.192",
        ])
        .prop_map(Value::from),
    ];
    leaf.prop_recursive(2, 12, 3, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            prop::collection::btree_map(".{0,10}", inner, 0..3)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

/// `value` with up to three fields replaced.
fn mutated(value: fn() -> Value) -> impl Strategy<Value = Value> {
    let fields = pointers(&value());
    prop::collection::vec((prop::sample::select(fields), anything()), 1..4).prop_map(move |changes| {
        let mut value = value();
        for (field, new) in changes {
            if let Some(old) = value.pointer_mut(&field) {
                *old = new;
            }
        }
        value
    })
}

/// The object; an error must say which kind it is of.
fn decode<T: Resource>(value: Value) -> Option<Arc<T>> {
    match RawObject::from_value(Arc::new(value)).decode::<T>() {
        Ok(object) => Some(object),
        Err(error) => {
            assert!(error.to_string().starts_with(T::kind().kind.as_str()), "{error}");
            None
        }
    }
}

fn any_rules() -> impl Strategy<Value = Rules> {
    (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>()).prop_map(|(ipv4, ipv6, kpr, loopback)| {
        Rules {
            ipv4,
            ipv6,
            replaces_kube_proxy: kpr,
            loopback_host_ports: loopback,
            ..rules()
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn services(value in mutated(full_service), rules in any_rules()) {
        let Some(object) = decode::<Service>(value) else { return Ok(()) };
        let _ = is_exposed_on(&object, &Labels::from_iter([("a", "b")]));
        match service(&object, &rules) {
            Err(error) => {
                let name = format!("service {}/{}: ", object.metadata.namespace, object.metadata.name);
                prop_assert!(error.to_string().starts_with(&name), "{error}");
            }
            Ok(converted) => {
                prop_assert!(converted.frontends.is_sorted_by(|a, b| a.address < b.address));
                prop_assert!(converted.frontends.iter().all(|f| f.address.port() != 0 && f.service_port != 0));
                prop_assert!(converted.frontends.iter().all(|f| rules.allows(f.address.ip())));
            }
        }
    }

    #[test]
    fn slices(value in mutated(full_slice), rules in any_rules()) {
        let Some(slice) = decode::<EndpointSlice>(value) else { return Ok(()) };
        let Some(converted) = endpoint_slice(&slice, &rules, &mut Interner::default()) else { return Ok(()) };
        prop_assert!(converted.backends.is_sorted_by(|a, b| a.address < b.address));
        prop_assert!(converted.backends.iter().all(|b| b.address.port() != 0 && rules.allows(b.address.ip())));
    }

    #[test]
    fn pods(value in mutated(full_pod), rules in any_rules()) {
        let Some(pod) = decode::<Pod>(value) else { return Ok(()) };
        for service in host_port_services(&pod, &rules) {
            prop_assert!(service.frontends.is_sorted_by(|a, b| a.address < b.address));
            prop_assert!(service.backends.iter().all(|b| b.address.port() != 0));
        }
    }
}
