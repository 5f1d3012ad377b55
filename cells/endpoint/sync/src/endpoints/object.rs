// SPDX-License-Identifier: Apache-2.0

//! The CiliumEndpoint of an endpoint.

use std::net::IpAddr;

use serde_json::{Map, Value, json};
use skep_endpoint::{Endpoint, EndpointSpec, EndpointState};
use skep_k8s_types::slim::Pod;
use skep_k8s_types::{ObjectKey, Resource as _, slim::CiliumEndpoint};

/// An object as it must be: its metadata beside the name, and its status.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Desired {
    pub(super) labels: Value,
    pub(super) owners: Value,
    pub(super) status: Value,
}

/// Name of the object of an endpoint; none without a pod.
pub(super) fn key(spec: &EndpointSpec) -> Option<ObjectKey> {
    (!spec.pod.is_empty()).then(|| ObjectKey {
        namespace: spec.namespace.as_str().into(),
        name: spec.pod.as_str().into(),
    })
}

impl Desired {
    /// `labels` are those of its identity, `node` is the address of this node.
    pub(super) fn new(endpoint: &Endpoint, pod: &Pod, labels: &[String], node: Option<IpAddr>) -> Self {
        let spec = &*endpoint.spec;
        let mut status = json!({
            "id": endpoint.id,
            "state": state(endpoint.state()),
            "encryption": {},
            "external-identifiers": identifiers(spec),
            "networking": {"addressing": [addresses(spec)]},
        });
        if let Some(identity) = endpoint.identity {
            status["identity"] = json!({"id": identity.get(), "labels": labels});
        }
        if let Some(node) = node {
            status["networking"]["node"] = json!(node);
        }
        let ports = named_ports(pod);
        if !ports.is_empty() {
            status["named-ports"] = ports.into();
        }
        let account = &pod.spec.service_account_name;
        if !account.is_empty() {
            status["service-account"] = json!(account);
        }
        let metadata = &pod.metadata;
        Self {
            labels: labels_of(pod),
            owners: json!([{"apiVersion": "v1", "kind": "Pod", "name": metadata.name, "uid": metadata.uid}]),
            status,
        }
    }

    pub(super) fn object(&self, key: &ObjectKey) -> Value {
        let kind = CiliumEndpoint::kind();
        json!({
            "apiVersion": kind.api_version(),
            "kind": kind.kind,
            "metadata": {
                "name": key.name,
                "namespace": key.namespace,
                "labels": self.labels,
                "ownerReferences": self.owners,
            },
            "status": self.status,
        })
    }

    /// The operations that make it this from `before`, if the object has this uid.
    pub(super) fn patch(&self, uid: &str, before: &Self) -> Value {
        let mut operations = vec![json!({"op": "test", "path": "/metadata/uid", "value": uid})];
        let parts = [
            ("/metadata/labels", &before.labels, &self.labels),
            ("/metadata/ownerReferences", &before.owners, &self.owners),
            ("/status", &before.status, &self.status),
        ];
        let parts = parts.into_iter().filter(|(_, before, now)| before != now);
        // `add` replaces a member that exists.
        operations.extend(parts.map(|(path, _, now)| json!({"op": "add", "path": path, "value": now})));
        operations.into()
    }

    /// What an object of the API server says.
    pub(super) fn of(object: &Value) -> Self {
        let metadata = &object["metadata"];
        Self {
            labels: or(metadata.get("labels"), json!({})),
            owners: or(metadata.get("ownerReferences"), json!([])),
            status: object.get("status").cloned().unwrap_or_default(),
        }
    }
}

fn or(value: Option<&Value>, default: Value) -> Value {
    value.cloned().unwrap_or(default)
}

fn labels_of(pod: &Pod) -> Value {
    let labels = pod.metadata.labels.iter();
    labels
        .map(|(key, value)| (key.to_owned(), json!(value)))
        .collect::<Map<_, _>>()
        .into()
}

/// What only concerns the node is no other state: the object is not written for it.
fn state(state: EndpointState) -> &'static str {
    match state {
        EndpointState::None | EndpointState::WaitingForIdentity | EndpointState::NotReady => state.as_str(),
        _ => EndpointState::Ready.as_str(),
    }
}

fn identifiers(spec: &EndpointSpec) -> Value {
    let mut identifiers = json!({
        "k8s-namespace": spec.namespace,
        "k8s-pod-name": spec.pod,
        "pod-name": spec.pod_name(),
    });
    if let Some(attachment) = spec.attachment() {
        identifiers["cni-attachment-id"] = attachment.into();
        identifiers["container-id"] = spec.container_id.as_str().into();
    }
    identifiers
}

fn addresses(spec: &EndpointSpec) -> Value {
    let mut pair = Map::new();
    if let Some(address) = spec.ipv4 {
        pair.insert("ipv4".to_owned(), json!(address));
    }
    if let Some(address) = spec.ipv6 {
        pair.insert("ipv6".to_owned(), json!(address));
    }
    pair.into()
}

/// Those of the containers that run all the time, sorted by name.
fn named_ports(pod: &Pod) -> Vec<Value> {
    let ports = pod.spec.containers.iter().flat_map(|container| &container.ports);
    let mut ports: Vec<_> = ports.filter(|port| !port.name.is_empty()).collect();
    ports.sort_by(|a, b| a.name.cmp(&b.name));
    let ports = ports.into_iter().map(
        |port| json!({"name": port.name, "port": port.container_port, "protocol": port.protocol.to_string()}),
    );
    ports.collect()
}
