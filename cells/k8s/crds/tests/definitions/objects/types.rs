// SPDX-License-Identifier: Apache-2.0

//! The types read and write what is stored.

use serde_json::{Value, json};
use skep_k8s_crds::endpoint::{CiliumEndpoint, EndpointState};
use skep_k8s_crds::node::CiliumNode;
use skep_k8s_crds::policy::{CiliumNetworkPolicy, Entity, IcmpType, Protocol};
use skep_k8s_crds::shared::ConditionStatus;
use skep_k8s_memory::{FieldValidation, Gvr, WriteOptions};
use skep_k8s_types::Resource;

use super::Cluster;

/// The object without what only the server knows.
fn own(object: &Value) -> Value {
    let mut object = object.clone();
    let map = object.as_object_mut().unwrap();
    for key in ["apiVersion", "kind", "metadata"] {
        map.shift_remove(key);
    }
    object
}

#[test]
fn policies_survive_a_round_trip() {
    let object = json!({ "spec": {
        "endpointSelector": {},
        "ingress": [
            { "fromEndpoints": [], "toPorts": [{ "ports": [{ "port": "80", "protocol": "TCP" }] }] },
            { "fromEntities": ["kube-apiserver"] },
            { "icmps": [{ "fields": [{ "family": "IPv4", "type": 8 }, { "family": "IPv6", "type": "EchoRequest" }] }] },
        ],
    } });
    let stored = Cluster::new().create("CiliumNetworkPolicy", object).unwrap();

    let policy: CiliumNetworkPolicy = serde_json::from_value((*stored).clone()).unwrap();

    assert_eq!(policy.metadata.name, "x");
    let ingress = policy.spec.as_ref().unwrap().ingress.as_ref().unwrap();
    assert_eq!(ingress[0].from_endpoints, Some(vec![]));
    assert_eq!(ingress[1].from_endpoints, None);
    assert_eq!(ingress[1].from_entities, Some(vec![Entity::KubeApiserver]));
    let ports = ingress[0].to_ports.as_ref().unwrap()[0].ports.as_ref().unwrap();
    assert_eq!(ports[0].protocol, Some(Protocol::Tcp));
    let fields = ingress[2].icmps.as_ref().unwrap()[0].fields.as_ref().unwrap();
    assert_eq!(fields[0].kind, IcmpType::Number(8));
    assert_eq!(fields[1].kind, IcmpType::Name("EchoRequest".to_owned()));
    assert_eq!(own(&serde_json::to_value(&policy).unwrap()), own(&stored));
}

#[test]
fn endpoints_survive_a_round_trip() {
    let object = json!({ "status": {
        "state": "waiting-for-identity", "encryption": {}, "health": { "overallHealth": "OK" },
        "controllers": [{ "configuration": { "error-retry-base": 5 }, "status": { "last-failure-msg": "no" } }],
        "policy": { "ingress": { "enforcing": true, "allowed": [{ "dest-port": 80, "identity-labels": { "a": "b" } }] } },
        "external-identifiers": { "k8s-pod-name": "p", "cni-attachment-id": "c" },
    } });
    let stored = Cluster::new().create("CiliumEndpoint", object).unwrap();

    let endpoint: CiliumEndpoint = serde_json::from_value((*stored).clone()).unwrap();

    let status = endpoint.status.as_ref().unwrap();
    assert_eq!(status.state, Some(EndpointState::WaitingForIdentity));
    assert_eq!(own(&serde_json::to_value(&endpoint).unwrap()), own(&stored));
}

#[test]
fn what_a_type_can_say_is_in_its_schema() {
    use skep_k8s_crds::{bgp, node, pools, shared};
    let cluster = Cluster::new();
    let strict = WriteOptions {
        validation: FieldValidation::Strict,
        ..WriteOptions::default()
    };
    let create = |kind: skep_k8s_types::Kind, value: Value| {
        let gvr = Gvr::new(&kind.group, &kind.version, &kind.plural);
        let mut value = value;
        value["metadata"]["name"] = "typed".into();
        cluster
            .0
            .create(&gvr, if kind.namespaced { "default" } else { "" }, value, &strict)
            .unwrap_or_else(|error| panic!("{kind}: {error}"))
            .object
    };
    let node = CiliumNode {
        spec: node::CiliumNodeSpec {
            bootid: Some("b".to_owned()),
            ipam: Some(node::IpamSpec {
                pre_allocate: Some(8),
                pod_cidrs: Some(vec!["10.0.0.0/24".to_owned()]),
                pools: Some(node::IpamPools {
                    allocated: Some(vec![node::AllocatedPool {
                        pool: "default".to_owned(),
                        allow_first_ip: Some(true),
                        ..node::AllocatedPool::default()
                    }]),
                    requested: None,
                }),
                ..node::IpamSpec::default()
            }),
            ..node::CiliumNodeSpec::default()
        },
        ..CiliumNode::default()
    };
    let stored = create(CiliumNode::kind(), serde_json::to_value(&node).unwrap());
    assert_eq!(
        stored["spec"]["ipam"]["pools"]["allocated"][0]["allowFirstIP"],
        true
    );

    let override_ = bgp::CiliumBGPNodeConfigOverride {
        spec: bgp::NodeConfigOverrideSpec {
            bgp_instances: vec![bgp::OverrideInstance {
                name: "a".to_owned(),
                router_id: Some("192.0.2.1".to_owned()),
                local_asn: Some(65000),
                ..bgp::OverrideInstance::default()
            }],
        },
        ..bgp::CiliumBGPNodeConfigOverride::default()
    };
    create(
        bgp::CiliumBGPNodeConfigOverride::kind(),
        serde_json::to_value(&override_).unwrap(),
    );

    let pool = pools::CiliumLoadBalancerIPPool {
        status: Some(shared::ConditionsStatus {
            conditions: Some(vec![shared::Condition {
                kind: "cilium.io/IPsTotal".to_owned(),
                status: ConditionStatus::Unknown,
                reason: "noreason".to_owned(),
                last_transition_time: "2026-11-22T10:00:00Z".to_owned(),
                ..shared::Condition::default()
            }]),
        }),
        ..pools::CiliumLoadBalancerIPPool::default()
    };
    create(
        pools::CiliumLoadBalancerIPPool::kind(),
        serde_json::to_value(&pool).unwrap(),
    );
}

/// The compact types of agents have a part of the fields: those must be fields of the API.
#[test]
fn compact_types_say_nothing_that_the_schema_does_not_know() {
    let cluster = Cluster::new();
    let node = json!({ "metadata": { "name": "n" }, "spec": {
        "instance-id": "i", "bootid": "b", "addresses": [{ "type": "InternalIP", "ip": "192.0.2.1" }],
        "health": { "ipv4": "10.0.0.1", "ipv6": "fd00::1" }, "encryption": { "key": 3 },
        "ipam": { "podCIDRs": ["10.0.0.0/24"], "pool": { "10.0.0.1": { "owner": "o" } } },
    } });
    let policy = json!({ "metadata": { "name": "p", "namespace": "default" }, "spec": {
        "redirectFrontend": { "serviceMatcher": { "serviceName": "s", "namespace": "default", "toPorts": [{ "port": "80", "name": "http", "protocol": "TCP" }] } },
        "redirectBackend": { "localEndpointSelector": { "matchLabels": { "a": "b" } }, "toPorts": [{ "port": "80", "name": "http", "protocol": "TCP" }] },
        "skipRedirectFromBackend": true, "description": "d",
    } });
    let node: skep_k8s_types::slim::CiliumNode = serde_json::from_value(node).unwrap();
    let policy: skep_k8s_types::slim::CiliumLocalRedirectPolicy = serde_json::from_value(policy).unwrap();
    let strict = WriteOptions {
        validation: FieldValidation::Strict,
        ..WriteOptions::default()
    };

    for (resource, namespace, value) in [
        ("ciliumnodes", "", serde_json::to_value(&node).unwrap()),
        (
            "ciliumlocalredirectpolicies",
            "default",
            serde_json::to_value(&policy).unwrap(),
        ),
    ] {
        let written = cluster
            .0
            .create(&Gvr::new("cilium.io", "v2", resource), namespace, value, &strict);
        written.unwrap_or_else(|error| panic!("{resource}: {error}"));
    }
}
