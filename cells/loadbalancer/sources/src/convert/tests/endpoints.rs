// SPDX-License-Identifier: Apache-2.0

//! Endpoint slices to backends.

use std::sync::Arc;

use serde_json::{Value, json};
use skep_k8s_types::slim::EndpointSlice;
use skep_loadbalancer_model::types::{BackendParams, BackendState, Names, Source};

use super::{object, rules};
use crate::convert::{Interner, Rules, SliceBackends, endpoint_slice};

fn slice(changes: Value) -> Arc<EndpointSlice> {
    let mut value = json!({
        "metadata": {
            "namespace": "shop", "name": "web-x1",
            "labels": {"kubernetes.io/service-name": "web"},
        },
        "addressType": "IPv4",
        "endpoints": [{"addresses": ["10.1.0.1"]}],
        "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
    });
    json_patch::merge(&mut value, &changes);
    object(value)
}

fn convert(changes: Value) -> SliceBackends {
    endpoint_slice(&slice(changes), &rules(), &mut Interner::default()).unwrap()
}

fn addresses(converted: &SliceBackends) -> Vec<String> {
    converted
        .backends
        .iter()
        .map(|backend| backend.address.to_string())
        .collect()
}

#[test]
fn belongs_to_the_service_of_its_label() {
    assert_eq!(convert(json!({})).service.as_str(), "shop/web");
    let orphan = slice(json!({"metadata": {"labels": null}}));
    assert_eq!(endpoint_slice(&orphan, &rules(), &mut Interner::default()), None);
}

#[test]
fn every_address_meets_every_port_sorted() {
    let converted = convert(json!({
        "endpoints": [{"addresses": ["10.1.0.2", "10.1.0.1"]}, {"addresses": ["10.1.0.3"]}],
        "ports": [{"name": "http", "port": 8080}, {"name": "dns", "port": 53, "protocol": "UDP"}],
    }));
    assert_eq!(
        addresses(&converted),
        [
            "10.1.0.1:53/UDP",
            "10.1.0.1:8080/TCP",
            "10.1.0.2:53/UDP",
            "10.1.0.2:8080/TCP",
            "10.1.0.3:53/UDP",
            "10.1.0.3:8080/TCP"
        ]
    );
    assert!(converted.backends.iter().all(|backend| backend.weight == 100));
}

#[test]
fn names_of_one_port_are_joined_and_the_empty_one_dropped() {
    let ports = json!([
        {"name": "http", "port": 8080},
        {"name": "", "port": 8080, "protocol": "TCP"},
        {"name": "web", "port": 8080},
        {"port": 9090},
    ]);
    let converted = convert(json!({"ports": ports}));

    let names: Vec<Vec<&str>> = converted
        .backends
        .iter()
        .map(|b| b.port_names.iter().collect())
        .collect();
    assert_eq!(addresses(&converted), ["10.1.0.1:8080/TCP", "10.1.0.1:9090/TCP"]);
    assert_eq!(names, [vec!["http", "web"], vec![]]);
}

#[test]
fn ports_that_cannot_be_served_are_skipped() {
    let ports = json!([
        {"name": "any"},
        {"name": "x", "port": 1, "protocol": "QUIC"},
        {"name": "zero", "port": 0},
        {"name": "large", "port": 65536},
        {"name": "ok", "port": 1, "protocol": "SCTP"},
    ]);
    assert_eq!(addresses(&convert(json!({"ports": ports}))), ["10.1.0.1:1/SCTP"]);
}

#[test]
fn conditions_decide_the_state() {
    use BackendState::{Active, Maintenance, Terminating, TerminatingNotServing};

    let state = |conditions: Value| {
        convert(json!({"endpoints": [{"addresses": ["10.1.0.1"], "conditions": conditions}]})).backends[0]
            .state
    };
    assert_eq!(state(json!({})), Active);
    assert_eq!(state(json!(null)), Active);
    assert_eq!(state(json!({"ready": true, "terminating": true})), Active);
    assert_eq!(state(json!({"ready": false})), Maintenance);
    assert_eq!(state(json!({"ready": false, "terminating": true})), Terminating);
    assert_eq!(
        state(json!({"ready": false, "serving": true, "terminating": true})),
        Terminating
    );
    assert_eq!(
        state(json!({"ready": false, "serving": false, "terminating": true})),
        TerminatingNotServing
    );
    assert_eq!(state(json!({"ready": false, "serving": false})), Maintenance);
}

#[test]
fn weight_annotation_counts_for_the_slice() {
    let with = |weight: &str| {
        let annotated = convert(json!({"metadata": {"annotations": {"service.cilium.io/weight": weight}}}));
        (annotated.backends[0].weight, annotated.backends[0].state)
    };
    assert_eq!(with("30"), (30, BackendState::Active));
    assert_eq!(with("0"), (0, BackendState::Maintenance));
    assert_eq!(with("65536"), (100, BackendState::Active));
    assert_eq!(with("much"), (100, BackendState::Active));
}

#[test]
fn place_comes_from_fields_or_deprecated_topology() {
    let topology = json!({"kubernetes.io/hostname": "n9", "topology.kubernetes.io/zone": "z9"});
    let converted = convert(json!({"endpoints": [
        {"addresses": ["10.1.0.1"], "nodeName": "n1", "zone": "a", "hints": {"forZones": [{"name": "a"}, {"name": "b"}]},
            "deprecatedTopology": topology},
        {"addresses": ["10.1.0.2"], "deprecatedTopology": topology},
        {"addresses": ["10.1.0.3"], "zone": "", "hints": {"forZones": [{"name": "a"}]}},
    ]}));
    let [first, second, third] = &converted.backends[..] else {
        panic!("three backends")
    };

    assert_eq!(first.node_name.as_deref(), Some("n1"));
    let zone = first.zone.as_ref().unwrap();
    assert_eq!(
        (zone.zone.as_str(), zone.for_zones.iter().collect::<Vec<_>>()),
        ("a", vec!["a", "b"])
    );
    assert_eq!(second.node_name.as_deref(), Some("n9"));
    assert_eq!(second.zone.as_ref().unwrap().zone, "z9");
    assert_eq!(second.zone.as_ref().unwrap().for_zones, Names::ABSENT);
    assert_eq!((&third.node_name, &third.zone), (&None, &None));
}

#[test]
fn what_cannot_be_an_address_is_skipped() {
    let endpoints =
        json!([{"addresses": ["10.1.0.1", "", "web.example.org", "10.1.0.256", "192.192.192.192"]}]);
    assert_eq!(
        addresses(&convert(json!({"endpoints": endpoints}))),
        ["10.1.0.1:8080/TCP", "192.192.192.192:8080/TCP"]
    );
    let dummy = json!({
        "endpoints": [{"addresses": ["192.192.192.192"]}],
        "ports": [{"port": 9999}],
    });
    assert_eq!(convert(dummy).backends, []);
    for kind in ["FQDN", "", "IPv5"] {
        assert_eq!(convert(json!({"addressType": kind})).backends, [], "{kind}");
    }
}

#[test]
fn disabled_families_have_no_backends() {
    let both = slice(json!({"endpoints": [{"addresses": ["10.1.0.1", "fd00::1"]}]}));
    let converted = endpoint_slice(
        &both,
        &Rules {
            ipv6: false,
            ..rules()
        },
        &mut Interner::default(),
    )
    .unwrap();
    assert_eq!(addresses(&converted), ["10.1.0.1:8080/TCP"]);
}

#[test]
fn ports_of_an_address_that_is_claimed_twice_have_the_names_of_both() {
    let both = |first: &[&str], second: &[&str]| {
        let claims = [first, second].map(|names| BackendParams {
            port_names: names.iter().copied().collect(),
            ..BackendParams::new("10.1.0.1:8080/TCP".parse().unwrap(), Source::Kubernetes)
        });
        let merged = BackendParams::of_claims(&claims).unwrap();
        merged.port_names.iter().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(both(&["web"], &["http", "web"]), ["http", "web"]);
    assert_eq!(both(&["web"], &["web"]), ["web"]);
    // One without a name serves every port.
    assert!(both(&["web"], &[]).is_empty());
}

#[test]
fn slices_share_what_they_repeat() {
    let place = json!({"endpoints": [{"addresses": ["10.1.0.1"], "nodeName": "n1", "zone": "a"}]});
    let mut interner = Interner::default();
    let [a, b] = [(); 2].map(|()| endpoint_slice(&slice(place.clone()), &rules(), &mut interner).unwrap());
    let (a, b) = (&a.backends[0], &b.backends[0]);

    assert!(Arc::ptr_eq(
        a.node_name.as_ref().unwrap(),
        b.node_name.as_ref().unwrap()
    ));
    assert!(Arc::ptr_eq(a.zone.as_ref().unwrap(), b.zone.as_ref().unwrap()));
    assert!(a.port_names.is_same(&b.port_names));
}
