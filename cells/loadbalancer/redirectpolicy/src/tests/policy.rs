// SPDX-License-Identifier: Apache-2.0

//! Checking custom resources, and what checked ones match.

use std::sync::Arc;

use proptest::prelude::*;
use serde_json::{Value, json};
use skep_k8s_types::slim::{CiliumLocalRedirectPolicy, Pod};
use skep_k8s_types::{RawObject, Resource};

use crate::{FrontendType, Policy, PolicyError};

#[track_caller]
fn object<T: Resource>(value: Value) -> Arc<T> {
    RawObject::from_value(Arc::new(value)).decode().unwrap()
}

fn resource(frontend: Value, backend_ports: Value) -> Arc<CiliumLocalRedirectPolicy> {
    object(json!({
        "metadata": {"namespace": "shop", "name": "lrp", "uid": "u"},
        "spec": {
            "redirectFrontend": frontend,
            "redirectBackend": {
                "localEndpointSelector": {"matchLabels": {"app": "proxy"}},
                "toPorts": backend_ports,
            },
        },
    }))
}

fn port(number: u16, name: &str) -> Value {
    json!({"port": number.to_string(), "protocol": "TCP", "name": name})
}

fn address(ports: Value) -> Value {
    json!({"addressMatcher": {"ip": "169.254.169.254", "toPorts": ports}})
}

fn service(ports: Value) -> Value {
    json!({"serviceMatcher": {"serviceName": "web", "namespace": "shop", "toPorts": ports}})
}

fn checked(frontend: Value, backend_ports: Value) -> Policy {
    Policy::new(&resource(frontend, backend_ports), &[]).unwrap()
}

fn fault(frontend: Value, backend_ports: Value) -> String {
    Policy::new(&resource(frontend, backend_ports), &[])
        .unwrap_err()
        .to_string()
}

#[test]
fn ports_decide_the_type() {
    let (one, two) = (json!([port(80, "")]), json!([port(80, "http"), port(81, "alt")]));
    let kind = |frontend, backend: &Value| checked(frontend, backend.clone()).frontend_type;

    assert_eq!(kind(address(one.clone()), &one), FrontendType::AddressSinglePort);
    assert_eq!(kind(address(two.clone()), &two), FrontendType::AddressNamedPorts);
    assert_eq!(kind(service(json!([])), &one), FrontendType::ServiceAll);
    assert_eq!(kind(service(one.clone()), &one), FrontendType::ServiceSinglePort);
    assert_eq!(kind(service(two.clone()), &two), FrontendType::ServiceNamedPorts);
}

#[test]
fn address_policies_list_their_addresses() {
    let policy = checked(
        address(json!([port(80, "HTTP"), port(81, "alt")])),
        json!([port(8080, "http"), port(8081, "alt")]),
    );
    let addresses: Vec<String> = policy
        .addresses()
        .map(|(address, name)| format!("{address} {name}"))
        .collect();

    assert_eq!(
        addresses,
        ["169.254.169.254:80/TCP http", "169.254.169.254:81/TCP alt"]
    );
    assert_eq!(policy.service(), None);
    assert_eq!(policy.redirect_service().as_str(), "shop/lrp:local-redirect");
}

#[test]
fn violations_are_named() {
    let ok = json!([port(80, "")]);
    let both = json!({"addressMatcher": {}, "serviceMatcher": {}});
    assert_eq!(fault(both, ok.clone()), PolicyError::Matchers.to_string());
    assert_eq!(fault(json!({}), ok.clone()), PolicyError::Matchers.to_string());
    assert_eq!(
        fault(
            json!({"addressMatcher": {"ip": "169.254.169.256", "toPorts": [port(80, "")]}}),
            ok.clone()
        ),
        "redirectFrontend.addressMatcher.ip: `169.254.169.256` is not an IP address"
    );
    let elsewhere = json!({"serviceMatcher": {"serviceName": "web", "namespace": "other"}});
    assert_eq!(
        fault(elsewhere, ok.clone()),
        "redirectFrontend.serviceMatcher.namespace: `other` is not the namespace of the policy"
    );
    let nameless = json!([port(80, "http"), port(81, "")]);
    assert_eq!(
        fault(service(nameless.clone()), ok.clone()),
        "redirectFrontend.serviceMatcher.toPorts: port 81 needs a service name, got ``"
    );
    assert_eq!(
        fault(service(json!([])), nameless),
        "redirectBackend.toPorts: port 81 needs a service name, got ``"
    );
    let named = json!([port(80, "http"), port(81, "alt")]);
    assert!(
        fault(service(named), ok.clone()).contains("redirectBackend.toPorts: port 80 needs a service name")
    );
    let udp = json!([{"port": "80", "protocol": "udp"}]);
    assert_eq!(
        fault(service(udp), ok.clone()),
        "protocols of frontend (UDP) and backend (TCP) differ"
    );
    for text in ["0", "65536", "x", "", "+1"] {
        let bad = json!([{"port": text, "protocol": "TCP"}]);
        assert_eq!(
            fault(service(bad), ok.clone()),
            format!("redirectFrontend.serviceMatcher.toPorts: `{text}` is not a port number")
        );
    }
    let bad = json!([{"port": "80", "protocol": "ANY"}]);
    assert_eq!(
        fault(service(json!([])), bad),
        "redirectBackend.toPorts: unknown protocol `ANY`"
    );
}

// Schemas of custom resources set no minimum, and a field may be absent (reference, defect 11).
#[test]
fn empty_lists_are_violations() {
    assert_eq!(
        fault(address(json!([port(80, "")])), json!([])),
        "redirectBackend.toPorts is empty"
    );
    assert_eq!(
        fault(address(json!([])), json!([port(80, "")])),
        "redirectFrontend.addressMatcher.toPorts is empty"
    );
    assert_eq!(
        fault(address(json!(null)), json!(null)),
        "redirectFrontend.addressMatcher.toPorts is empty"
    );
}

#[test]
fn addresses_must_be_allowed() {
    let resource = resource(address(json!([port(80, "")])), json!([port(80, "")]));
    assert!(Policy::new(&resource, &["169.254.169.254/32".parse().unwrap()]).is_ok());
    let error = Policy::new(&resource, &["10.0.0.0/8".parse().unwrap()]).unwrap_err();
    assert_eq!(error, PolicyError::AddressNotAllowed([169, 254, 169, 254].into()));
}

fn pod(ports: Value, ready: &str) -> Arc<Pod> {
    object(json!({
        "metadata": {"namespace": "shop", "name": "proxy-0", "labels": {"app": "proxy"}},
        "spec": {"containers": [{"name": "c", "ports": ports}]},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": ready}]},
    }))
}

#[test]
fn only_ready_pods_of_the_namespace_are_selected() {
    let policy = checked(service(json!([])), json!([port(80, "")]));
    assert!(policy.selects(&pod(json!([]), "True")));
    assert!(!policy.selects(&pod(json!([]), "False")));

    let mut other = (*pod(json!([]), "True")).clone();
    other.metadata.namespace = "elsewhere".into();
    assert!(!policy.selects(&other));
    let mut unlabelled = (*pod(json!([]), "True")).clone();
    unlabelled.metadata.labels = Default::default();
    assert!(!policy.selects(&unlabelled));
}

#[test]
fn names_decide_only_among_named_ports() {
    let ports = json!([
        {"name": "http", "containerPort": 80},
        {"name": "alt", "containerPort": 81},
        {"name": "dns", "containerPort": 80, "protocol": "UDP"},
    ]);
    let found = |policy: &Policy| {
        let pod = pod(ports.clone(), "True");
        let text = |(number, proto, name): (u16, _, Option<&compact_str::CompactString>)| {
            format!("{number}/{proto} {}", name.map_or("-", |name| name.as_str()))
        };
        policy.pod_ports(&pod).into_iter().map(text).collect::<Vec<_>>()
    };
    let (one, named) = (
        json!([port(80, "")]),
        json!([port(80, "http"), port(81, "other")]),
    );

    assert_eq!(found(&checked(service(json!([])), one.clone())), ["80/TCP -"]);
    assert_eq!(found(&checked(address(one.clone()), one)), ["80/TCP -"]);
    assert_eq!(
        found(&checked(service(json!([])), named.clone())),
        ["80/TCP http", "81/TCP other"]
    );
    assert_eq!(found(&checked(address(named.clone()), named)), ["80/TCP http"]);
}

#[test]
fn service_ports_are_matched_by_number_and_name() {
    let redirects = |policy: &Policy, address: &str, name| policy.redirects(&address.parse().unwrap(), name);

    let all = checked(service(json!([])), json!([port(80, "")]));
    assert!(redirects(&all, "10.96.0.1:1/UDP", "any"));
    let single = checked(service(json!([port(80, "")])), json!([port(8080, "")]));
    assert!(redirects(&single, "10.96.0.1:80/TCP", "http"));
    assert!(!redirects(&single, "10.96.0.1:80/UDP", "http"));
    assert!(!redirects(&single, "10.96.0.1:81/TCP", "http"));
    let named = checked(service(json!([])), json!([port(8080, "http"), port(8081, "alt")]));
    assert!(redirects(&named, "10.96.0.1:80/TCP", "http"));
    assert!(!redirects(&named, "10.96.0.1:80/TCP", "dns"));
}

proptest! {
    #[test]
    fn no_resource_panics(
        fields in prop::collection::vec((0..12usize, prop_oneof![
            Just(json!(null)), Just(json!([])), Just(json!({})), Just(json!("")), Just(json!([null])), Just(json!([{}])),
            ".{0,20}".prop_map(Value::from), any::<i64>().prop_map(Value::from),
        ]), 1..4),
    ) {
        const PATHS: [&str; 12] = [
            "/metadata", "/metadata/name", "/spec", "/spec/redirectFrontend", "/spec/redirectFrontend/addressMatcher",
            "/spec/redirectFrontend/addressMatcher/ip", "/spec/redirectFrontend/addressMatcher/toPorts",
            "/spec/redirectFrontend/addressMatcher/toPorts/0/port", "/spec/redirectBackend",
            "/spec/redirectBackend/toPorts", "/spec/redirectBackend/localEndpointSelector",
            "/spec/redirectBackend/toPorts/0/name",
        ];
        let mut value = json!({
            "metadata": {"namespace": "shop", "name": "lrp"},
            "spec": {
                "redirectFrontend": address(json!([port(80, "http"), port(81, "alt")])),
                "redirectBackend": {"localEndpointSelector": {"matchLabels": {"a": "b"}}, "toPorts": [port(80, "http"), port(81, "alt")]},
            },
        });
        for (path, new) in fields {
            if let Some(old) = value.pointer_mut(PATHS[path]) {
                *old = new;
            }
        }
        if let Ok(resource) = RawObject::from_value(Arc::new(value)).decode::<CiliumLocalRedirectPolicy>() {
            let _ = Policy::new(&resource, &[]);
        }
    }
}
