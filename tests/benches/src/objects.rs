// SPDX-License-Identifier: Apache-2.0

//! Made-up services and endpoint slices, as they come decoded from a watch.

use std::net::Ipv4Addr;
use std::sync::Arc;

use serde_json::{Value, json};
use skep_k8s_client::ObjectEvent;
use skep_k8s_types::ObjectKey;
use skep_k8s_types::slim::{
    AddressType, Endpoint, EndpointConditions, EndpointPort, EndpointSlice, IntOrString, IpFamily, Labels,
    Metadata, Protocol, Service, ServicePort, ServiceSpec, ServiceType, SessionAffinity, Str, TrafficPolicy,
};
use skep_loadbalancer_sources::Event;

pub(crate) const NAMESPACE: &str = "bench";
/// Addresses of services are counted up from here, those of backends from [`PODS`].
const CLUSTER_IPS: u32 = u32::from_be_bytes([10, 96, 0, 1]);
const PODS: u32 = u32::from_be_bytes([10, 128, 0, 1]);

pub(crate) fn cluster_ip(service: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(CLUSTER_IPS + service)
}

fn text(ip: u32) -> Str {
    Str::from(Ipv4Addr::from_bits(ip).to_string())
}

fn metadata(number: u32, name: String, version: u32, labels: Labels) -> Metadata {
    Metadata {
        name: name.into(),
        namespace: NAMESPACE.into(),
        uid: format!("5f1ab8e2-6b8c-4d0e-9f7a-{number:012x}").into(),
        resource_version: version.to_string().into(),
        labels,
        ..Metadata::default()
    }
}

/// A ClusterIP service with one TCP port.
pub(crate) fn service(number: u32) -> Service {
    let name = format!("service-{number}");
    let address = text(CLUSTER_IPS + number);
    let labels: Labels = [("app", name.as_str())].into_iter().collect();
    Service {
        metadata: metadata(number, name, number + 1, labels.clone()),
        spec: ServiceSpec {
            ports: [ServicePort {
                name: "http".into(),
                protocol: Protocol::Tcp,
                port: 80,
                target_port: IntOrString::Int(8080),
                node_port: 0,
            }]
            .into(),
            selector: labels,
            cluster_ip: address.clone(),
            cluster_ips: [address].into(),
            kind: ServiceType::ClusterIp,
            session_affinity: SessionAffinity::None,
            ip_families: [IpFamily::V4].into(),
            ip_family_policy: Some("SingleStack".into()),
            internal_traffic_policy: TrafficPolicy::Cluster,
            ..ServiceSpec::default()
        },
        ..Service::default()
    }
}

/// A slice of a service, with the pods of `range` (numbers in the whole cluster) that `is_there` accepts.
pub(crate) fn slice(
    service: u32,
    slice: u32,
    range: std::ops::Range<u32>,
    is_there: impl Fn(u32) -> bool,
) -> EndpointSlice {
    let owner = format!("service-{service}");
    let labels: Labels = [
        (
            "endpointslice.kubernetes.io/managed-by",
            "endpointslice-controller.k8s.io",
        ),
        ("kubernetes.io/service-name", owner.as_str()),
    ]
    .into_iter()
    .collect();
    let endpoint = |pod: u32| Endpoint {
        addresses: [text(PODS + pod)].into(),
        conditions: EndpointConditions {
            ready: Some(true),
            serving: Some(true),
            terminating: Some(false),
        },
        node_name: Some(format!("node-{}", pod % 100).into()),
        ..Endpoint::default()
    };
    EndpointSlice {
        metadata: metadata(
            service,
            format!("service-{service}-{slice:05x}"),
            service + 1,
            labels,
        ),
        address_type: AddressType::V4,
        endpoints: range.filter(|pod| is_there(*pod)).map(endpoint).collect(),
        ports: [EndpointPort {
            name: Some("http".into()),
            protocol: Protocol::Tcp,
            port: Some(8080),
        }]
        .into(),
    }
}

/// Identities of the cluster with id 2.
pub(crate) const FIRST_IDENTITY: u32 = (2 << 16) + 256;
/// Addresses of nodes are counted up from here.
const NODES: u32 = u32::from_be_bytes([172, 20, 0, 1]);

/// Address of a node with an interface.
pub(crate) const NODE_ADDRESS: Ipv4Addr = Ipv4Addr::new(172, 31, 0, 1);

/// Address of a pod of [`cilium_endpoint`].
pub(crate) fn pod_address(number: u32) -> Ipv4Addr {
    (PODS + number).into()
}

/// A pod of the node of the benchmark, with one of so many label sets.
pub(crate) fn pod(number: u32, label_sets: u32, node: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": format!("pod-{number}"), "namespace": NAMESPACE,
            "labels": {"app": format!("app-{}", number % label_sets.max(1)), "tier": "web"},
        },
        "spec": {"nodeName": node, "serviceAccountName": "default", "containers": [{"name": "main", "image": "main"}]},
    })
}

/// The CiliumEndpoint of a pod, which has one of so many identities, on one of so many nodes.
pub(crate) fn cilium_endpoint(number: u32, identities: u32, nodes: u32) -> Value {
    let identity = FIRST_IDENTITY + number % identities.max(1);
    json!({
        "apiVersion": "cilium.io/v2", "kind": "CiliumEndpoint",
        "metadata": {"name": format!("pod-{number}"), "namespace": NAMESPACE},
        "status": {
            "id": number % 60_000,
            "identity": {"id": identity, "labels": [format!("k8s:app=app-{identity}")]},
            "networking": {
                "addressing": [{"ipv4": text(PODS + number)}],
                "node": text(NODES + number % nodes.max(1)),
            },
            "encryption": {},
        },
    })
}

pub(crate) fn cilium_identity(number: u32) -> Value {
    let identity = FIRST_IDENTITY + number;
    json!({
        "apiVersion": "cilium.io/v2", "kind": "CiliumIdentity",
        "metadata": {"name": identity.to_string()},
        "security-labels": {
            "k8s:app": format!("app-{identity}"),
            "k8s:io.cilium.k8s.policy.cluster": "remote",
            "k8s:io.kubernetes.pod.namespace": NAMESPACE,
        },
    })
}

pub(crate) fn cilium_node(number: u32) -> Value {
    json!({
        "apiVersion": "cilium.io/v2", "kind": "CiliumNode",
        "metadata": {"name": format!("node-{number}")},
        "spec": {"addresses": [{"type": "InternalIP", "ip": text(NODES + number)}]},
    })
}

pub(crate) fn service_there(object: Service) -> Event {
    Event::Service(ObjectEvent::Applied(Arc::new(object)))
}

pub(crate) fn slice_there(object: EndpointSlice) -> Event {
    Event::Slice(ObjectEvent::Applied(Arc::new(object)))
}

fn key(name: String) -> ObjectKey {
    ObjectKey {
        namespace: NAMESPACE.into(),
        name: name.into(),
    }
}

pub(crate) fn service_gone(number: u32) -> Event {
    Event::Service(ObjectEvent::Deleted(key(format!("service-{number}")), None))
}

pub(crate) fn slice_gone(service: u32, slice: u32) -> Event {
    Event::Slice(ObjectEvent::Deleted(
        key(format!("service-{service}-{slice:05x}")),
        None,
    ))
}
