// SPDX-License-Identifier: Apache-2.0

//! What services may ask for, and what becomes of it when they change.

use super::*;

fn with(spec: Value) -> Value {
    let mut service = service("a", 80);
    for (key, value) in spec.as_object().unwrap() {
        service["spec"][key] = value.clone();
    }
    service
}

#[track_caller]
fn refused(server: &ApiServer, spec: Value) -> String {
    let error = server.create(&services(), "default", with(spec), &by("t"));
    error.unwrap_err().message
}

#[test]
fn refuses_what_the_type_does_not_use() {
    let server = server();
    let cases = [
        (
            json!({ "externalTrafficPolicy": "Local" }),
            "spec.externalTrafficPolicy: Invalid value: \"Local\": may only be set for externally-accessible services",
        ),
        (
            json!({ "allocateLoadBalancerNodePorts": false }),
            "spec.allocateLoadBalancerNodePorts: Forbidden: may only be used when `type` is 'LoadBalancer'",
        ),
        (
            json!({ "type": "NodePort", "loadBalancerSourceRanges": ["10.0.0.0/8"] }),
            "spec.loadBalancerSourceRanges: Forbidden: may only be used when `type` is 'LoadBalancer'",
        ),
        (
            json!({ "healthCheckNodePort": 30500 }),
            "spec.healthCheckNodePort: Invalid value: 30500: may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'",
        ),
        (
            json!({ "type": "LoadBalancer", "healthCheckNodePort": 30500 }),
            "spec.healthCheckNodePort: Invalid value: 30500",
        ),
        (
            json!({ "type": "ExternalName", "externalName": "a.b", "clusterIP": "10.96.0.9" }),
            "spec.clusterIPs: Forbidden: may not be set for ExternalName services",
        ),
        (
            json!({ "type": "ExternalName", "externalName": "a.b", "ipFamilies": ["IPv4"] }),
            "spec.ipFamilies: Forbidden: may not be set for ExternalName services",
        ),
    ];
    for (spec, expected) in cases {
        let message = refused(&server, spec.clone());
        assert!(message.contains(expected), "{spec}: {message}");
    }
}

#[test]
fn a_change_of_type_drops_what_was_there_and_refuses_what_is_new() {
    let server = server();
    let patch = |change: Value| {
        let patch = Patch::Merge(json!({ "spec": change }));
        let written = server.patch(&services(), "default", "a", Subresource::None, &patch, &by("t"));
        written.map(|written| written.object["spec"].clone())
    };
    let balancer = json!({
        "type": "LoadBalancer", "externalTrafficPolicy": "Local", "loadBalancerClass": "example.com/a",
        "externalIPs": ["192.0.2.1"],
    });
    server
        .create(&services(), "default", with(balancer), &by("t"))
        .unwrap();

    let class = patch(json!({ "loadBalancerClass": "example.com/b" })).unwrap_err();
    let port = patch(json!({ "healthCheckNodePort": 31999 })).unwrap_err();
    assert!(
        class
            .message
            .contains("spec.loadBalancerClass: Invalid value: \"example.com/b\": may not change once set"),
        "{class}"
    );
    assert!(
        port.message
            .contains("spec.healthCheckNodePort: Invalid value: 31999: field is immutable"),
        "{port}"
    );

    let plain = patch(json!({ "type": "ClusterIP" })).unwrap();
    assert_eq!(
        plain["externalTrafficPolicy"], "Local",
        "external addresses need it still"
    );
    for gone in [
        "loadBalancerClass",
        "allocateLoadBalancerNodePorts",
        "healthCheckNodePort",
    ] {
        assert_eq!(plain.get(gone), None, "{gone}");
    }
    let inner = patch(json!({ "externalIPs": null })).unwrap();
    assert_eq!(inner.get("externalTrafficPolicy"), None);
    let outer = patch(json!({ "externalTrafficPolicy": "Local" })).unwrap_err();
    assert!(outer.message.contains("externally-accessible"), "{outer}");

    let name = patch(json!({ "type": "ExternalName", "externalName": "a.b" })).unwrap();
    assert_eq!((name.get("clusterIP"), name.get("ipFamilies")), (None, None));
}
