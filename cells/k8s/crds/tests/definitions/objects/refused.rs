// SPDX-License-Identifier: Apache-2.0

//! What is refused, in the words of an API server.

use std::sync::LazyLock;

use serde_json::{Value, json};
use skep_k8s_memory::{Patch, Subresource};

use super::Cluster;

fn selector() -> Value {
    json!({ "matchLabels": { "app": "web" } })
}

/// A policy with one ingress rule.
fn ingress(rule: Value) -> Value {
    json!({ "spec": { "endpointSelector": {}, "ingress": [rule] } })
}

fn ports(rule: Value) -> Value {
    ingress(json!({ "toPorts": [rule] }))
}

fn redirect(frontend: Value) -> Value {
    json!({ "spec": {
        "redirectFrontend": frontend,
        "redirectBackend": { "localEndpointSelector": {}, "toPorts": [{ "port": "80", "protocol": "TCP" }] },
    } })
}

fn gateway(gateway: Value) -> Value {
    json!({ "spec": { "selectors": [{ "podSelector": {} }], "destinationCIDRs": ["0.0.0.0/0"], "egressGateway": gateway } })
}

fn advertisement(route: Value) -> Value {
    json!({ "spec": { "advertisements": [route] } })
}

#[track_caller]
fn refuses(kind: &str, object: Value, expected: &[&str]) {
    static CLUSTER: LazyLock<Cluster> = LazyLock::new(Cluster::new);

    let error = CLUSTER
        .create(kind, object.clone())
        .expect_err("it must be refused");

    assert_eq!(error.code, 422, "{error}");
    for text in expected {
        assert!(error.message.contains(text), "{object}: {error}");
    }
}

#[test]
fn policies_have_rules_with_one_subject_and_a_direction() {
    let policy = "CiliumNetworkPolicy";
    refuses(
        policy,
        json!({}),
        &[
            "CiliumNetworkPolicy.cilium.io \"x\" is invalid: <nil>: Invalid value: \"object\": spec or specs must be provided",
        ],
    );
    refuses(
        policy,
        json!({ "spec": { "ingress": [] } }),
        &["\"spec\" must validate one and only one schema (oneOf). Found none valid"],
    );
    refuses(
        policy,
        json!({ "spec": { "endpointSelector": {}, "nodeSelector": {}, "ingress": [] } }),
        &["\"spec\" must validate one and only one schema (oneOf). Found 2 valid alternatives"],
    );
    refuses(
        policy,
        json!({ "spec": { "endpointSelector": {} } }),
        &["\"spec\" must validate at least one schema (anyOf)"],
    );
    refuses(
        "CiliumClusterwideNetworkPolicy",
        json!({ "specs": [{ "nodeSelector": {}, "ingress": [] }, { "ingress": [] }] }),
        &["\"specs[1]\" must validate one and only one schema (oneOf)"],
    );
}

#[test]
fn peers_are_networks_names_and_known_entities() {
    let policy = "CiliumNetworkPolicy";
    for (rule, expected) in [
        (
            json!({ "fromCIDR": ["10.0.0.1"] }),
            "spec.ingress[0].fromCIDR[0] in body must be of type cidr: \"10.0.0.1\"",
        ),
        (
            json!({ "fromCIDRSet": [{}] }),
            "\"spec.ingress[0].fromCIDRSet[0]\" must validate one and only one schema",
        ),
        (
            json!({ "fromCIDRSet": [{ "cidr": "10.0.0.0/8", "cidrGroupRef": "a" }] }),
            "Found 2 valid alternatives",
        ),
        (
            json!({ "fromCIDRSet": [{ "cidrGroupRef": "A_b" }] }),
            "spec.ingress[0].fromCIDRSet[0].cidrGroupRef in body should match '^[a-z0-9]",
        ),
        (
            json!({ "fromEntities": ["world-ipv4"] }),
            "spec.ingress[0].fromEntities[0]: Unsupported value: \"world-ipv4\": supported values: \"all\", \"world\", \"cluster\"",
        ),
        (
            json!({ "fromRequires": ["a"] }),
            "spec.ingress[0].fromRequires: Too many: 1: must have at most 0 items",
        ),
        (
            json!({ "fromEndpoints": [{ "matchLabels": { "a": "b c" } }] }),
            "spec.ingress[0].fromEndpoints[0].matchLabels.a in body should match",
        ),
        (
            json!({ "fromEndpoints": [{ "matchExpressions": [{ "key": "a", "operator": "Near" }] }] }),
            "operator: Unsupported value: \"Near\"",
        ),
        (
            json!({ "fromEndpoints": [{ "matchExpressions": [{ "operator": "Exists" }] }] }),
            "spec.ingress[0].fromEndpoints[0].matchExpressions[0].key: Required value",
        ),
        (
            json!({ "authentication": {} }),
            "spec.ingress[0].authentication.mode: Required value",
        ),
        (
            json!({ "icmps": [{ "fields": [{ "type": "Nope" }] }] }),
            "spec.ingress[0].icmps[0].fields[0].type in body should match",
        ),
        (
            json!({ "icmps": [{ "fields": [{ "type": true }] }] }),
            "must be of type integer,string: \"boolean\"",
        ),
    ] {
        refuses(policy, ingress(rule), &[expected]);
    }
    refuses(
        policy,
        json!({ "spec": { "endpointSelector": {}, "egress": [{ "toFQDNs": [{ "matchName": "a", "matchPattern": "*" }] }] } }),
        &[
            "\"spec.egress[0].toFQDNs[0]\" must validate one and only one schema (oneOf). Found 2 valid alternatives",
        ],
    );
}

#[test]
fn ports_have_one_sort_of_rules() {
    let policy = "CiliumNetworkPolicy";
    for (rule, expected) in [
        (
            json!({ "rules": {} }),
            "\"spec.ingress[0].toPorts[0].rules\" must validate one and only one schema",
        ),
        (
            json!({ "rules": { "http": [], "dns": [] } }),
            "Found 2 valid alternatives",
        ),
        (
            json!({ "serverNames": ["a", "a"] }),
            "spec.ingress[0].toPorts[0].serverNames[1]: Duplicate value: \"a\"",
        ),
        (
            json!({ "serverNames": [] }),
            "spec.ingress[0].toPorts[0].serverNames in body should have at least 1 items",
        ),
        (
            json!({ "ports": [{ "port": "80", "protocol": "tcp" }] }),
            "protocol: Unsupported value: \"tcp\": supported values: \"TCP\", \"UDP\", \"SCTP\"",
        ),
        (
            json!({ "ports": [{ "port": "80", "endPort": 65536 }] }),
            "endPort in body should be less than or equal to 65535",
        ),
        (
            json!({ "ports": vec![json!({ "port": "1" }); 41] }),
            "spec.ingress[0].toPorts[0].ports: Too many: 41: must have at most 40 items",
        ),
        (
            json!({ "rules": { "http": [{ "headerMatches": [{ "name": "" }] }] } }),
            "headerMatches[0].name in body should be at least 1 chars long",
        ),
        (
            json!({ "terminatingTLS": {} }),
            "spec.ingress[0].toPorts[0].terminatingTLS.secret: Required value",
        ),
        (
            json!({ "listener": { "name": "l", "envoyConfig": { "name": "c", "kind": "X" }, "priority": 101 } }),
            "listener.envoyConfig.kind: Unsupported value: \"X\"",
        ),
    ] {
        refuses(policy, ports(rule), &[expected]);
    }
    // The pattern of ports bounds nothing: the check in code does.
    let cluster = Cluster::new();
    cluster
        .create(policy, ports(json!({ "ports": [{ "port": "99999" }] })))
        .unwrap();
    let mut policy_with_log = ingress(json!({}));
    policy_with_log["spec"]["log"] = json!({ "value": "a\nb" });
    refuses(
        policy,
        policy_with_log,
        &["spec.log.value in body should match '^\\PC*$'"],
    );
}

#[test]
fn redirect_policies_have_one_frontend_and_cannot_change() {
    let kind = "CiliumLocalRedirectPolicy";
    let ports = json!([{ "port": "80", "protocol": "TCP" }]);
    let address = |ip: &str| json!({ "addressMatcher": { "ip": ip, "toPorts": ports } });
    refuses(
        kind,
        redirect(json!({})),
        &["\"spec.redirectFrontend\" must validate one and only one schema"],
    );
    refuses(
        kind,
        redirect(address("10.0.0.256")),
        &["spec.redirectFrontend.addressMatcher.ip in body should match"],
    );
    refuses(
        kind,
        redirect(
            json!({ "serviceMatcher": { "namespace": "default", "toPorts": [{ "port": "60000", "protocol": "SCTP" }] } }),
        ),
        &[
            "spec.redirectFrontend.serviceMatcher.serviceName: Required value",
            "toPorts[0].port in body should match",
            "toPorts[0].protocol: Unsupported value: \"SCTP\"",
            "<nil>: Invalid value: \"null\": some validation rules were not checked because the object was invalid; correct the existing errors to complete validation",
        ],
    );

    let cluster = Cluster::new();
    cluster.create(kind, redirect(address("10.0.0.1"))).unwrap();
    let patch = |spec: Value| cluster.patch(kind, Subresource::None, Patch::Merge(json!({ "spec": spec })));
    for (change, message) in [
        (
            json!({ "redirectFrontend": address("10.0.0.2") }),
            "spec.redirectFrontend: Invalid value: \"object\": redirectFrontend is immutable",
        ),
        (
            json!({ "redirectBackend": { "localEndpointSelector": selector() } }),
            "spec.redirectBackend: Invalid value: \"object\": redirectBackend is immutable",
        ),
        (
            json!({ "skipRedirectFromBackend": true }),
            "spec.skipRedirectFromBackend: Invalid value: \"boolean\": skipRedirectFromBackend is immutable",
        ),
    ] {
        let error = patch(change).unwrap_err();
        assert!(error.message.ends_with(message), "{error}");
    }
    patch(json!({ "description": "new" })).unwrap();
}

#[test]
fn pools_have_networks_and_keep_their_mask() {
    refuses(
        "CiliumLoadBalancerIPPool",
        json!({ "spec": { "blocks": [{ "cidr": "192.0.2.1" }], "allowFirstLastIPs": "Maybe" } }),
        &[
            "spec.blocks[0].cidr in body must be of type cidr",
            "spec.allowFirstLastIPs: Unsupported value: \"Maybe\"",
        ],
    );
    refuses(
        "CiliumPodIPPool",
        json!({ "spec": { "ipv4": { "cidrs": [], "maskSize": 33 }, "ipv6": { "cidrs": ["fd00::/48"] } } }),
        &[
            "spec.ipv4.cidrs in body should have at least 1 items",
            "spec.ipv4.maskSize in body should be less than or equal to 32",
            "spec.ipv6.maskSize: Required value",
        ],
    );
    let cluster = Cluster::new();
    let pool = json!({ "spec": { "ipv4": { "cidrs": ["10.0.0.0/8"], "maskSize": 24 } } });
    cluster.create("CiliumPodIPPool", pool).unwrap();
    let patch = |spec: Value| {
        cluster.patch(
            "CiliumPodIPPool",
            Subresource::None,
            Patch::Merge(json!({ "spec": spec })),
        )
    };
    let error = patch(json!({ "ipv4": { "maskSize": 25 }, "allowLastIP": true })).unwrap_err();
    assert!(
        error
            .message
            .contains("spec.ipv4.maskSize: Invalid value: \"integer\": maskSize is immutable"),
        "{error}"
    );
    assert!(
        error
            .message
            .contains("spec.allowLastIP: Invalid value: \"boolean\": allowLastIP is immutable"),
        "{error}"
    );
    // What becomes or was absent is no change of the value.
    patch(json!({ "ipv6": { "cidrs": ["fd00::/48"], "maskSize": 64 } })).unwrap();
    patch(json!({ "ipv6": null })).unwrap();
}

#[test]
fn gateways_have_an_address_that_is_one() {
    let kind = "CiliumEgressGatewayPolicy";
    refuses(
        kind,
        gateway(json!({ "nodeSelector": {}, "egressIP": "192.0.2" })),
        &["spec.egressGateway.egressIP: Invalid value: \"string\": egressIP must be a valid IP address"],
    );
    refuses(
        kind,
        gateway(json!({})),
        &["spec.egressGateway.nodeSelector: Required value"],
    );
    refuses(
        kind,
        gateway(json!({ "nodeSelector": {}, "egressIP": "1".repeat(40) })),
        &["spec.egressGateway.egressIP: Too long: may not be more than 39 bytes"],
    );
    let mut wrong = gateway(json!({ "nodeSelector": {} }));
    wrong["spec"]["destinationCIDRs"] = json!(["10.0.0.0/33", "10.0.0.1"]);
    refuses(
        kind,
        wrong,
        &[
            "spec.destinationCIDRs[0] in body should match",
            "spec.destinationCIDRs[1] in body should match",
        ],
    );
    let cluster = Cluster::new();
    cluster
        .create(kind, gateway(json!({ "nodeSelector": {}, "egressIP": "" })))
        .unwrap();
}

#[test]
fn bgp_settings_fit_together() {
    for (route, expected) in [
        (
            json!({ "advertisementType": "Service" }),
            "service field is required for the 'Service' advertisementType",
        ),
        (
            json!({ "advertisementType": "PodCIDR", "service": { "addresses": ["ClusterIP"] } }),
            "service field is not allowed for non-'Service' advertisementType",
        ),
        (
            json!({ "advertisementType": "Interface" }),
            "interface field is required for the 'Interface' advertisementType",
        ),
        (
            json!({ "advertisementType": "CiliumPodIPPool", "interface": { "name": "lo" } }),
            "interface field is not allowed for non-'Interface' advertisementType",
        ),
        (
            json!({ "advertisementType": "PodCIDR", "selector": {} }),
            "selector field is not allowed for the 'PodCIDR' advertisementType",
        ),
    ] {
        let expected = format!("spec.advertisements[0]: Invalid value: \"object\": {expected}");
        refuses("CiliumBGPAdvertisement", advertisement(route), &[&expected]);
    }
    refuses(
        "CiliumBGPAdvertisement",
        advertisement(
            json!({ "advertisementType": "PodCIDR", "attributes": { "communities": { "standard": ["65536:1"], "wellKnown": ["x"] } } }),
        ),
        &[
            "standard[0] in body should match",
            "wellKnown[0]: Unsupported value: \"x\"",
        ],
    );
    refuses(
        "CiliumBGPPeerConfig",
        json!({ "spec": { "timers": { "holdTimeSeconds": 9 } } }),
        &[
            "spec.timers: Invalid value: \"object\": keepAliveTimeSeconds can not be larger than holdTimeSeconds",
        ],
    );
    refuses(
        "CiliumBGPClusterConfig",
        json!({ "spec": { "bgpInstances": [{ "name": "a", "localASN": 0 }, { "name": "a" }] } }),
        &[
            "spec.bgpInstances[0].localASN in body should be greater than or equal to 1",
            "spec.bgpInstances[1]: Duplicate value: {\"name\":\"a\"}",
        ],
    );
    refuses(
        "CiliumBGPNodeConfig",
        json!({ "spec": { "bgpInstances": [{ "name": "a", "routerID": "fd00::1" }] } }),
        &["spec.bgpInstances[0].routerID in body must be of type ipv4: \"fd00::1\""],
    );
    let old = advertisement(json!({ "advertisementType": "Interface" }));
    let error = Cluster::new()
        .create_in("CiliumBGPAdvertisement", "v2alpha1", old)
        .unwrap_err();
    assert!(
        error.message.contains("Unsupported value: \"Interface\""),
        "{error}"
    );
}

#[test]
fn other_kinds_have_what_they_need() {
    for (kind, object, expected) in [
        ("CiliumIdentity", json!({}), "security-labels: Required value"),
        ("CiliumNode", json!({}), "spec: Required value"),
        (
            "CiliumNode",
            json!({ "spec": { "ipam": { "podCIDRs": ["10.0.0.0"], "pre-allocate": -1, "pools": { "requested": [{ "pool": "" }] } } } }),
            "spec.ipam.pools.requested[0].pool in body should be at least 1 chars long",
        ),
        (
            "CiliumEndpoint",
            json!({ "status": { "state": "fine" } }),
            "status.state: Unsupported value: \"fine\"",
        ),
        (
            "CiliumEndpointSlice",
            json!({ "namespace": "a" }),
            "endpoints: Required value",
        ),
        (
            "CiliumEndpointSlice",
            json!({ "endpoints": [{ "networking": {} }] }),
            "endpoints[0].networking.addressing: Required value",
        ),
        (
            "CiliumNodeConfig",
            json!({ "spec": { "defaults": {} } }),
            "spec.nodeSelector: Required value",
        ),
        (
            "CiliumEnvoyConfig",
            json!({ "spec": {} }),
            "spec.resources: Required value",
        ),
        (
            "CiliumCIDRGroup",
            json!({ "spec": {} }),
            "spec.externalCIDRs: Required value",
        ),
        (
            "CiliumGatewayClassConfig",
            json!({ "spec": { "service": { "type": "ClusterIP" } } }),
            "spec.service.type: Unsupported value",
        ),
        (
            "CiliumDatapathPlugin",
            json!({ "spec": { "attachmentPolicy": "Always" } }),
            "spec.version: Required value",
        ),
        (
            "ServiceImport",
            json!({ "spec": { "type": "Headless" } }),
            "spec.ports: Required value",
        ),
        (
            "CiliumL2AnnouncementPolicy",
            json!({ "spec": { "interfaces": [1] } }),
            "spec.interfaces[0] in body must be of type string",
        ),
    ] {
        refuses(kind, object, &[expected]);
    }
}
