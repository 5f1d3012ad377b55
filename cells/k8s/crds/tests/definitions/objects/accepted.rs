// SPDX-License-Identifier: Apache-2.0

//! What is accepted, and what becomes of it: defaults, unknown fields, versions.

use serde_json::{Value, json};
use skep_k8s_memory::{Gvr, Patch, Subresource, WriteOptions};

use super::{Cluster, all, crds};

/// One object of each kind, with many of its fields.
fn examples() -> Vec<(&'static str, Value)> {
    let selector = json!({ "matchLabels": { "app": "web" } });
    vec![
        (
            "CiliumNetworkPolicy",
            json!({ "spec": {
                "endpointSelector": { "matchExpressions": [{ "key": "app", "operator": "In", "values": ["web"] }] },
                "ingress": [
                    { "fromEndpoints": [selector], "toPorts": [{
                        "ports": [{ "port": "80", "protocol": "TCP" }, { "port": "http" }],
                        "rules": { "http": [{ "method": "GET", "path": "/.*", "headers": ["X-A: b"] }] },
                        "serverNames": ["example.com", "*.example.com"],
                    }] },
                    { "fromCIDRSet": [{ "cidr": "10.0.0.0/8", "except": ["10.96.0.0/12"] }, { "cidrGroupRef": "office" }] },
                    { "fromEntities": ["cluster", "remote-node"], "icmps": [{ "fields": [{ "type": 8 }, { "family": "IPv6", "type": "EchoRequest" }] }] },
                    { "fromEndpoints": [] },
                ],
                "egress": [{ "toFQDNs": [{ "matchPattern": "*.example.com" }], "toPorts": [{
                    "ports": [{ "port": "53", "protocol": "ANY", "endPort": 0 }],
                    "rules": { "dns": [{ "matchPattern": "*" }] },
                }] }],
                "labels": [{ "key": "team", "value": "a" }],
                "log": { "value": "größer" },
            } }),
        ),
        (
            "CiliumClusterwideNetworkPolicy",
            json!({ "specs": [{ "nodeSelector": {}, "ingressDeny": [{ "fromEntities": ["world"] }] }] }),
        ),
        (
            "CiliumEndpoint",
            json!({ "status": {
                "id": 42, "state": "ready", "encryption": {}, "named-ports": [{ "name": "http", "port": 80, "protocol": "TCP" }],
                "identity": { "id": 1234, "labels": ["k8s:app=web"] },
                "networking": { "addressing": [{ "ipv4": "10.0.0.1", "ipv6": "fd00::1" }], "node": "192.0.2.1" },
                "external-identifiers": { "cni-attachment-id": "abc:eth0", "k8s-pod-name": "web" },
            } }),
        ),
        (
            "CiliumEndpointSlice",
            json!({ "namespace": "default", "endpoints": [{ "name": "web", "id": 1234, "encryption": {}, "networking": { "addressing": [{ "ipv4": "10.0.0.1" }] } }] }),
        ),
        (
            "CiliumIdentity",
            json!({ "metadata": { "name": "1234" }, "security-labels": { "k8s:app": "web", "k8s:io.kubernetes.pod.namespace": "default" } }),
        ),
        (
            "CiliumNode",
            json!({ "spec": {
                "addresses": [{ "type": "InternalIP", "ip": "192.0.2.1" }, { "type": "CiliumInternalIP", "ip": "10.0.0.1" }],
                "ipam": { "podCIDRs": ["10.0.0.0/24"], "pre-allocate": 8, "pool": { "10.0.0.5": {} }, "pools": { "requested": [{ "pool": "default", "needed": { "ipv4-addrs": 16 } }] } },
                "encryption": { "key": 3 }, "eni": {}, "health": { "ipv4": "10.0.0.2" },
            } }),
        ),
        (
            "CiliumNodeConfig",
            json!({ "spec": { "defaults": { "debug": "true" }, "nodeSelector": { "matchExpressions": [{ "key": "a", "operator": "Near" }] } } }),
        ),
        (
            "CiliumLocalRedirectPolicy",
            json!({ "spec": {
                "redirectFrontend": { "addressMatcher": { "ip": " 169.254.169.254 ", "toPorts": [{ "port": "80", "protocol": "TCP" }] } },
                "redirectBackend": { "localEndpointSelector": selector, "toPorts": [{ "port": "8080", "protocol": "TCP", "name": "http" }] },
            } }),
        ),
        (
            "CiliumLoadBalancerIPPool",
            json!({ "spec": { "blocks": [{ "cidr": "192.0.2.0/24" }, { "start": "198.51.100.1", "stop": "198.51.100.9" }], "allowFirstLastIPs": "No" } }),
        ),
        (
            "CiliumPodIPPool",
            json!({ "spec": { "ipv4": { "cidrs": ["10.0.0.0/8"], "maskSize": 24 }, "podSelector": {} } }),
        ),
        (
            "CiliumEnvoyConfig",
            json!({ "spec": {
                "resources": [{ "@type": "type.googleapis.com/envoy.config.listener.v3.Listener", "name": "l", "filterChains": [{ "deep": { "er": 1 } }] }],
                "services": [{ "name": "web", "namespace": "default", "ports": [80] }],
                "backendServices": [{ "name": "web", "number": ["80"] }],
            } }),
        ),
        (
            "CiliumClusterwideEnvoyConfig",
            json!({ "spec": { "resources": [] } }),
        ),
        (
            "CiliumEgressGatewayPolicy",
            json!({ "spec": {
                "destinationCIDRs": ["0.0.0.0/0", "fd00::/8"],
                "selectors": [{ "podSelector": {} }],
                "egressGateway": { "nodeSelector": {}, "egressIP": "192.0.2.9" },
            } }),
        ),
        (
            "CiliumBGPClusterConfig",
            json!({ "spec": { "nodeSelector": {}, "bgpInstances": [{ "name": "a", "localASN": 65000, "peers": [{ "name": "tor", "peerAddress": "192.0.2.254", "peerConfigRef": { "name": "p" } }] }] } }),
        ),
        (
            "CiliumBGPPeerConfig",
            json!({ "spec": { "timers": {}, "transport": {}, "gracefulRestart": { "enabled": true }, "families": [{ "afi": "ipv4", "safi": "unicast" }] } }),
        ),
        (
            "CiliumBGPAdvertisement",
            json!({ "spec": { "advertisements": [
                { "advertisementType": "PodCIDR", "attributes": { "communities": { "standard": ["65000:1", "4294967295"], "large": ["1:2:3"], "wellKnown": ["no-export"] } } },
                { "advertisementType": "Service", "selector": {}, "service": { "addresses": ["LoadBalancerIP"], "aggregationLengthIPv4": 24 } },
                { "advertisementType": "Interface", "interface": { "name": "lo" } },
            ] } }),
        ),
        (
            "CiliumBGPNodeConfig",
            json!({ "spec": { "bgpInstances": [{ "name": "a", "routerID": "192.0.2.1" }] } }),
        ),
        (
            "CiliumBGPNodeConfigOverride",
            json!({ "spec": { "bgpInstances": [{ "name": "a", "routerID": "192.0.2.1", "peers": [{ "name": "tor", "localAddress": "fd00::1" }] }] } }),
        ),
        (
            "CiliumL2AnnouncementPolicy",
            json!({ "spec": { "interfaces": ["^eth[0-9]+"], "loadBalancerIPs": true } }),
        ),
        ("CiliumCIDRGroup", json!({ "spec": { "externalCIDRs": [] } })),
        (
            "CiliumGatewayClassConfig",
            json!({ "spec": { "service": { "type": "NodePort" }, "httpOptions": { "grpcWebTranslation": {} } } }),
        ),
        (
            "CiliumDatapathPlugin",
            json!({ "spec": { "attachmentPolicy": "Always", "version": "1" } }),
        ),
        (
            "ServiceExport",
            json!({ "spec": { "exportedLabels": { "a": "b" } } }),
        ),
        (
            "ServiceImport",
            json!({ "spec": { "type": "ClusterSetIP", "ips": ["10.0.0.1"], "ports": [{ "port": 80 }] } }),
        ),
    ]
}

/// True if all of `part` is in `whole`.
fn is_in(part: &Value, whole: &Value) -> bool {
    match (part, whole) {
        (Value::Object(part), Value::Object(whole)) => part
            .iter()
            .all(|(key, value)| whole.get(key).is_some_and(|found| is_in(value, found))),
        (Value::Array(part), Value::Array(whole)) => {
            part.len() == whole.len() && part.iter().zip(whole).all(|(part, whole)| is_in(part, whole))
        }
        _ => part == whole,
    }
}

#[test]
fn accepts_objects_of_all_kinds_and_keeps_their_fields() {
    let cluster = Cluster::new();

    for (kind, object) in examples() {
        let stored = cluster
            .create(kind, object.clone())
            .unwrap_or_else(|error| panic!("{kind}: {error}"));
        assert!(is_in(&object, &stored), "{kind}: {stored:#}");
    }
    let mut kinds: Vec<&str> = examples().iter().map(|(kind, _)| *kind).collect();
    kinds.sort_unstable();
    let mut defined: Vec<String> = all().iter().map(|definition| definition.kind.clone()).collect();
    defined.sort();
    assert_eq!(kinds, defined, "every kind has an example");
}

#[test]
fn fills_in_defaults() {
    let cluster = Cluster::new();
    for (kind, object) in examples() {
        cluster
            .create(kind, object)
            .unwrap_or_else(|error| panic!("{kind}: {error}"));
    }
    let spec = |kind: &str| cluster.get(kind, "").unwrap()["spec"].clone();

    assert_eq!(
        spec("CiliumNetworkPolicy")["ingress"][2]["icmps"][0]["fields"][0]["family"],
        "IPv4"
    );
    assert_eq!(spec("CiliumLoadBalancerIPPool")["disabled"], false);
    assert_eq!(
        spec("CiliumLocalRedirectPolicy")["skipRedirectFromBackend"],
        false
    );
    assert_eq!(spec("CiliumPodIPPool")["allowFirstIP"], false);
    assert_eq!(spec("CiliumEgressGatewayPolicy")["egressGateways"], json!([]));
    assert_eq!(
        spec("CiliumBGPClusterConfig")["bgpInstances"][0]["peers"][0]["peerASN"],
        0
    );
    assert_eq!(
        spec("CiliumBGPPeerConfig")["timers"],
        json!({ "connectRetryTimeSeconds": 120, "holdTimeSeconds": 90, "keepAliveTimeSeconds": 30 })
    );
    assert_eq!(
        spec("CiliumBGPPeerConfig")["transport"],
        json!({ "peerPort": 179 })
    );
    assert_eq!(spec("CiliumBGPPeerConfig")["ebgpMultihop"], 1);
    assert_eq!(
        spec("CiliumGatewayClassConfig"),
        json!({
            "service": { "type": "NodePort", "externalTrafficPolicy": "Cluster", "loadBalancerSourceRangesPolicy": "Allow" },
            "httpOptions": { "grpcWebTranslation": { "enabled": true } },
        })
    );
}

#[test]
fn keeps_empty_lists_apart_from_absent_ones() {
    let cluster = Cluster::new();
    let policy =
        json!({ "spec": { "endpointSelector": {}, "ingress": [{ "fromEndpoints": [] }, {}], "egress": [] } });

    let stored = cluster.create("CiliumNetworkPolicy", policy).unwrap();

    assert_eq!(stored["spec"]["ingress"], json!([{ "fromEndpoints": [] }, {}]));
    assert_eq!(stored["spec"]["egress"], json!([]));
}

#[test]
fn drops_unknown_fields_but_not_those_of_envoy() {
    let cluster = Cluster::new();
    let (gvr, object) = (
        Gvr::new("cilium.io", "v2", "ciliumcidrgroups"),
        json!({ "metadata": { "name": "g" }, "spec": { "externalCIDRs": ["10.0.0.0/8"], "cidrs": [] } }),
    );

    let written = cluster
        .0
        .create(&gvr, "", object, &WriteOptions::default())
        .unwrap();

    assert_eq!(written.warnings, ["unknown field \"spec.cidrs\""]);
    assert!(written.object["spec"].get("cidrs").is_none());
}

#[test]
fn serves_old_versions_of_the_same_objects() {
    let cluster = Cluster::new();
    let old = json!({ "spec": { "bgpInstances": [{ "name": "a", "peers": [{ "name": "p", "peerConfigRef": { "name": "c" } }] }] } });

    cluster
        .create_in("CiliumBGPClusterConfig", "v2alpha1", old)
        .unwrap();

    let peer = |version: &str| {
        let object = cluster.get("CiliumBGPClusterConfig", version).unwrap();
        object["spec"]["bgpInstances"][0]["peers"][0]["peerConfigRef"].clone()
    };
    assert_eq!(peer("v2alpha1")["kind"], "CiliumBGPPeerConfig");
    assert_eq!(peer("v2")["name"], "c");
    assert_eq!(
        cluster.get("CiliumBGPClusterConfig", "v2").unwrap()["apiVersion"],
        "cilium.io/v2"
    );
    assert!(
        cluster.get("CiliumPodIPPool", "v2").unwrap_err().is_not_found(),
        "defined, not served"
    );
}

#[test]
fn status_is_a_part_of_its_own_only_where_it_is_a_sub_resource() {
    let cluster = Cluster::new();
    let pool = json!({ "spec": { "blocks": [] }, "status": { "conditions": [] } });
    let made = cluster.create("CiliumLoadBalancerIPPool", pool).unwrap();
    assert!(made.get("status").is_none(), "ignored on create");

    // There is no status yet: clients replace it all the same.
    let condition = json!({
        "type": "cilium.io/PoolConflict", "status": "False", "reason": "resolved", "message": "",
        "lastTransitionTime": "2026-11-22T10:00:00Z", "observedGeneration": 1,
    });
    let replace = json!([{ "op": "replace", "path": "/status", "value": { "conditions": [condition] } }]);
    let patched = cluster
        .patch(
            "CiliumLoadBalancerIPPool",
            Subresource::Status,
            Patch::Json(replace),
        )
        .unwrap();
    assert_eq!(patched["status"]["conditions"][0]["status"], "False");
    assert_eq!(patched["metadata"]["generation"], 1);

    let endpoint = json!({ "status": { "state": "ready" } });
    let made = cluster.create("CiliumEndpoint", endpoint).unwrap();
    assert_eq!(made["status"]["state"], "ready");
    let uid = made["metadata"]["uid"].clone();
    let update = |uid: Value| {
        let operations = json!([
            { "op": "test", "path": "/metadata/uid", "value": uid },
            { "op": "replace", "path": "/status", "value": { "state": "not-ready" } },
        ]);
        cluster.patch("CiliumEndpoint", Subresource::None, Patch::Json(operations))
    };
    assert_eq!(update("other".into()).unwrap_err().code, 422);
    let updated = update(uid).unwrap();
    assert_eq!(updated["status"], json!({ "state": "not-ready" }));
    assert_eq!(updated["metadata"]["generation"], 2);
}

#[test]
fn fills_defaults_of_a_newer_definition_into_older_objects() {
    let cluster = Cluster::new();
    let definition = all()
        .iter()
        .find(|d| d.kind == "CiliumLoadBalancerIPPool")
        .unwrap();
    let mut older = definition.to_object();
    for version in older["spec"]["versions"].as_array_mut().unwrap() {
        let properties = &mut version["schema"]["openAPIV3Schema"]["properties"];
        properties["spec"]["properties"]["disabled"]
            .as_object_mut()
            .unwrap()
            .shift_remove("default");
    }
    let put = |mut object: Value| {
        let name = definition.name();
        let current = cluster.0.get(&crds(), "", &name).unwrap();
        object["metadata"]["resourceVersion"] = current["metadata"]["resourceVersion"].clone();
        let options = WriteOptions::default();
        cluster
            .0
            .update(&crds(), "", &name, Subresource::None, object, &options)
            .unwrap();
    };
    put(older);
    cluster
        .create("CiliumLoadBalancerIPPool", json!({ "spec": {} }))
        .unwrap();
    assert_eq!(
        cluster.get("CiliumLoadBalancerIPPool", "").unwrap()["spec"],
        json!({})
    );

    put(definition.to_object());

    assert_eq!(
        cluster.get("CiliumLoadBalancerIPPool", "").unwrap()["spec"],
        json!({ "disabled": false })
    );
}
