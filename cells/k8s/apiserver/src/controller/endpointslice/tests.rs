// SPDX-License-Identifier: Apache-2.0

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::{Value, json};

use super::desired::groups;
use super::place::{Change, place};

fn service(spec: Value) -> Value {
    json!({
        "metadata": { "namespace": "shop", "name": "web", "uid": "u", "labels": { "team": "a" } },
        "spec": spec,
    })
}

fn pod(name: &str, ips: &[&str], ready: bool) -> Arc<Value> {
    let ips: Vec<Value> = ips.iter().map(|ip| json!({ "ip": ip })).collect();
    Arc::new(json!({
        "metadata": { "namespace": "shop", "name": name, "uid": format!("uid-{name}") },
        "spec": {
            "nodeName": "n1",
            "containers": [{ "name": "c", "ports": [{ "name": "http", "containerPort": 8080, "protocol": "TCP" }] }],
        },
        "status": {
            "phase": "Running", "podIPs": ips,
            "conditions": [{ "type": "Ready", "status": if ready { "True" } else { "False" } }],
        },
    }))
}

fn stored(change: &Change, name: &str) -> Arc<Value> {
    let (Change::Create(slice) | Change::Update(slice)) = change else {
        panic!("{change:?}")
    };
    let mut slice = slice.clone();
    slice["metadata"]["name"] = name.into();
    Arc::new(slice)
}

fn one_port() -> Value {
    json!({ "ipFamilies": ["IPv4"], "ports": [{ "name": "web", "port": 80, "targetPort": "http", "protocol": "TCP" }] })
}

#[test]
fn makes_an_endpoint_of_a_pod() {
    let service = service(one_port());
    let pods = [pod("a", &["10.0.0.1"], true)];
    let zones = HashMap::from([("n1".to_owned(), "z1".to_owned())]);

    let changes = place(&service, groups(&service, pods.iter(), &zones), Vec::new());

    let [Change::Create(slice)] = &changes[..] else {
        panic!("{changes:?}")
    };
    assert_eq!(slice["addressType"], "IPv4");
    assert_eq!(
        slice["ports"],
        json!([{ "name": "web", "protocol": "TCP", "port": 8080 }])
    );
    assert_eq!(
        slice["endpoints"],
        json!([{
            "addresses": ["10.0.0.1"],
            "conditions": { "ready": true, "serving": true, "terminating": false },
            "targetRef": { "kind": "Pod", "namespace": "shop", "name": "a", "uid": "uid-a" },
            "nodeName": "n1",
            "zone": "z1",
        }])
    );
    assert_eq!(
        slice["metadata"]["labels"],
        json!({
            "team": "a",
            "kubernetes.io/service-name": "web",
            "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
        })
    );
    assert_eq!(slice["metadata"]["ownerReferences"][0]["uid"], "u");
}

#[test]
fn makes_a_slice_of_each_family() {
    let mut spec = one_port();
    spec["ipFamilies"] = json!(["IPv4", "IPv6"]);
    let service = service(spec);
    let pods = [pod("a", &["10.0.0.1", "fd00::1"], true)];

    let changes = place(
        &service,
        groups(&service, pods.iter(), &HashMap::new()),
        Vec::new(),
    );

    let families: Vec<&Value> = changes
        .iter()
        .map(|c| {
            if let Change::Create(s) = c {
                &s["addressType"]
            } else {
                panic!()
            }
        })
        .collect();
    assert_eq!(families, ["IPv4", "IPv6"]);
}

#[test]
fn splits_at_a_hundred_and_writes_only_what_changed() {
    let service = service(one_port());
    let pods: Vec<Arc<Value>> = (0..150)
        .map(|n| {
            pod(
                &format!("p{n:03}"),
                &[&format!("10.0.{}.{}", n / 100, n % 100 + 1)],
                true,
            )
        })
        .collect();
    let made = place(
        &service,
        groups(&service, pods.iter(), &HashMap::new()),
        Vec::new(),
    );
    let sizes: Vec<usize> = made
        .iter()
        .map(|c| {
            if let Change::Create(s) = c {
                s["endpoints"].as_array().unwrap().len()
            } else {
                panic!()
            }
        })
        .collect();
    assert_eq!(sizes, [100, 50]);
    let slices = vec![stored(&made[0], "s0"), stored(&made[1], "s1")];

    let nothing = place(
        &service,
        groups(&service, pods.iter(), &HashMap::new()),
        slices.clone(),
    );
    assert!(nothing.is_empty(), "{nothing:?}");

    let fewer = &pods[1..];
    let changes = place(&service, groups(&service, fewer.iter(), &HashMap::new()), slices);
    assert_eq!(changes.len(), 1);
    assert!(matches!(&changes[0], Change::Update(s) if s["metadata"]["name"] == "s0"));
}
