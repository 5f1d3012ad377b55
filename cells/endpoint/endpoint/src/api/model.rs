// SPDX-License-Identifier: Apache-2.0

//! Endpoints as models of the API.

use std::net::IpAddr;

use skep_base_api_types::{
    Endpoint as Model, EndpointAddressing, EndpointHealth, EndpointIdentifiers, EndpointNetworking,
    EndpointPolicy, EndpointPolicyStatus, EndpointStatus, Identity, LabelConfigurationStatus,
};
use skep_identity::{Label, NumericIdentity, Reserved};

use crate::{Endpoint, EndpointState};

/// An endpoint as the API shows it.
pub(super) fn endpoint(row: &Endpoint) -> Model {
    let spec = &*row.spec;
    let address = |address: Option<IpAddr>| address.map(|address| address.to_string()).unwrap_or_default();
    let policy = EndpointPolicy {
        id: row.identity.map_or(0, NumericIdentity::get),
        // No policies are computed: everything is allowed.
        policy_enabled: "none".to_owned(),
    };
    Model {
        id: row.id,
        status: EndpointStatus {
            state: row.state().as_str().to_owned(),
            external_identifiers: EndpointIdentifiers {
                cni_attachment_id: spec.attachment().unwrap_or_default(),
                container_id: spec.container_id.clone(),
                k8s_namespace: spec.namespace.clone(),
                k8s_pod_name: spec.pod.clone(),
                pod_name: spec.pod_name().unwrap_or_default(),
            },
            identity: row.identity.map(identity),
            labels: labels(row),
            networking: EndpointNetworking {
                addressing: vec![EndpointAddressing {
                    ipv4: address(spec.ipv4.map(IpAddr::from)),
                    ipv6: address(spec.ipv6.map(IpAddr::from)),
                    ..EndpointAddressing::default()
                }],
                container_interface_name: spec.container_interface.clone(),
                host_mac: spec.host_mac.to_string(),
                interface_index: spec.ifindex,
                interface_name: spec.interface.clone(),
                mac: spec.mac.to_string(),
            },
            health: health(row),
            policy: EndpointPolicyStatus {
                spec: policy.clone(),
                realized: policy,
            },
        },
    }
}

/// The labels of reserved identities are known; those of others only who allocated them knows.
fn identity(number: NumericIdentity) -> Identity {
    let reserved = Reserved::ALL.into_iter().find(|label| label.identity() == number);
    Identity {
        id: number.get(),
        labels: reserved
            .map(|label| format!("reserved:{}", label.name()))
            .into_iter()
            .collect(),
    }
}

fn text(label: &Label) -> String {
    match label.value() {
        "" => format!("{}:{}", label.source(), label.key()),
        value => format!("{}:{}={value}", label.source(), label.key()),
    }
}

/// Labels of an endpoint. Those that came with it are not in its identity while that is a reserved one.
pub(super) fn labels(row: &Endpoint) -> LabelConfigurationStatus {
    let own: Vec<String> = row.spec.labels.iter().map(text).collect();
    let of_identity = row
        .identity
        .map(|number| identity(number).labels)
        .unwrap_or_default();
    match of_identity.is_empty() {
        true => LabelConfigurationStatus {
            security_relevant: own,
            ..LabelConfigurationStatus::default()
        },
        false => LabelConfigurationStatus {
            derived: own,
            security_relevant: of_identity,
            ..LabelConfigurationStatus::default()
        },
    }
}

pub(super) fn health(row: &Endpoint) -> EndpointHealth {
    let (word, connected) = match row.state() {
        EndpointState::Ready => ("OK", true),
        EndpointState::NotReady => ("Failure", false),
        EndpointState::Disconnecting | EndpointState::Disconnected => ("Disabled", false),
        // After a restart its programs go on.
        EndpointState::Restoring => ("Pending", true),
        EndpointState::WaitingForIdentity | EndpointState::WaitingToRegenerate => ("Pending", false),
    };
    EndpointHealth {
        bpf: word.to_owned(),
        policy: word.to_owned(),
        connected,
        overall_health: word.to_owned(),
    }
}
