// SPDX-License-Identifier: Apache-2.0

//! Endpoints as models of the API.

use std::net::IpAddr;

use skep_base_api_types::{
    Endpoint as Model, EndpointAddressing, EndpointConfigurationSpec, EndpointHealth, EndpointIdentifiers,
    EndpointNetworking, EndpointPolicy, EndpointPolicyStatus, EndpointStatus, EndpointStatusChange, Identity,
    LabelConfigurationSpec, LabelConfigurationStatus, NamedPort,
};
use skep_bpf_maps::endpoint::endpoint_flags;
use skep_identity::NumericIdentity;
use skep_policy_maps::Realized;
use skep_policy_repository::Repository;

use super::controllers::controllers;
use crate::{Endpoint, EndpointState, LogEntry, labels::texts};

/// An endpoint as the API shows it.
pub(super) fn endpoint(row: &Endpoint, policies: Option<&Repository>) -> Model {
    let spec = &*row.spec;
    let address = |address: Option<IpAddr>| address.map(|address| address.to_string()).unwrap_or_default();
    Model {
        id: row.id,
        spec: configuration(row),
        status: EndpointStatus {
            state: row.state().as_str().to_owned(),
            external_identifiers: EndpointIdentifiers {
                cni_attachment_id: spec.attachment().unwrap_or_default(),
                container_id: spec.container_id.clone(),
                k8s_namespace: spec.namespace.clone(),
                k8s_pod_name: spec.pod.clone(),
                pod_name: format!("{}/{}", spec.namespace, spec.pod),
            },
            controllers: controllers(row),
            identity: row.identity.map(|id| Identity {
                id: id.get(),
                labels: texts(&row.identity_labels),
            }),
            labels: labels(row),
            log: row.log.last().iter().map(log_entry).collect(),
            named_ports: named_ports(row),
            networking: EndpointNetworking {
                addressing: vec![EndpointAddressing {
                    ipv4: address(spec.ipv4.map(IpAddr::from)),
                    ipv4_pool_name: spec.ipv4_pool.clone(),
                    ipv6: address(spec.ipv6.map(IpAddr::from)),
                    ipv6_pool_name: spec.ipv6_pool.clone(),
                    ..EndpointAddressing::default()
                }],
                container_interface_name: spec.container_interface.clone(),
                host_mac: spec.host_mac.to_string(),
                interface_index: spec.ifindex,
                interface_name: spec.interface.clone(),
                mac: spec.mac.to_string(),
            },
            health: health(row),
            policy: policy_status(row, policies),
            realized: configuration(row),
        },
    }
}

fn policy_status(row: &Endpoint, policies: Option<&Repository>) -> EndpointPolicyStatus {
    let realized = row.policy.or_else(|| {
        // Without the host firewall, the host has no policy to realize.
        let revision = policies.filter(|_| row.is_host)?.revision();
        Some(Realized {
            revision,
            open: endpoint_flags::OPEN_INGRESS | endpoint_flags::OPEN_EGRESS,
            enforced: 0,
        })
    });
    let realized = policy(row, realized);
    let computed = policies.filter(|_| row.policy.is_some());
    let computed = computed.and_then(|policies| policies.endpoint_policy(row.id));
    let Some(mut spec) = computed else {
        return EndpointPolicyStatus {
            spec: realized.clone(),
            realized,
            ..EndpointPolicyStatus::default()
        };
    };
    let options = row.options.texts();
    let is_audit = options
        .get("PolicyAuditMode")
        .is_some_and(|text| text == "Enabled");
    if is_audit && spec.policy_enabled != "none" {
        spec.policy_enabled.insert_str(0, "audit-");
    }
    EndpointPolicyStatus {
        proxy_policy_revision: if row.is_host { 0 } else { spec.policy_revision },
        realized: EndpointPolicy {
            build: realized.build,
            policy_revision: realized.policy_revision,
            ..spec.clone()
        },
        spec,
        ..EndpointPolicyStatus::default()
    }
}

/// Its policy: a direction without enforcement allows all.
fn policy(row: &Endpoint, realized: Option<Realized>) -> EndpointPolicy {
    let open = |flag: u8| realized.is_none_or(|realized| realized.open & flag != 0);
    let (ingress, egress) = (
        open(endpoint_flags::OPEN_INGRESS),
        open(endpoint_flags::OPEN_EGRESS),
    );
    let all = |is_open: bool| realized.filter(|_| is_open).map(|_| vec![0]);
    let revision = realized.map_or(0, |realized| realized.revision);
    EndpointPolicy {
        id: row.identity.map_or(0, NumericIdentity::get),
        build: revision,
        policy_revision: revision,
        policy_enabled: match (ingress, egress) {
            (true, true) => "none",
            (false, true) => "ingress",
            (true, false) => "egress",
            (false, false) => "both",
        }
        .to_owned(),
        allowed_egress_identities: all(egress),
        allowed_ingress_identities: all(ingress),
        ..EndpointPolicy::default()
    }
}

pub(super) fn configuration(row: &Endpoint) -> EndpointConfigurationSpec {
    EndpointConfigurationSpec {
        label_configuration: user_labels(row),
        options: row.options.texts(),
    }
}

pub(super) fn user_labels(row: &Endpoint) -> LabelConfigurationSpec {
    LabelConfigurationSpec {
        user: texts(&row.labels.custom),
    }
}

pub(super) fn log_entry(entry: &LogEntry) -> EndpointStatusChange {
    EndpointStatusChange {
        code: entry.code.as_str().to_owned(),
        message: entry.message.to_string(),
        state: entry.state.as_str().to_owned(),
        timestamp: Some(entry.at),
    }
}

fn named_ports(row: &Endpoint) -> Vec<NamedPort> {
    let ports = row.pod.iter().flat_map(|pod| &pod.named_ports);
    let port = |port: &crate::NamedPort| NamedPort {
        name: port.name.to_string(),
        port: port.port,
        protocol: port.protocol.to_string(),
    };
    ports.map(port).collect()
}

pub(super) fn labels(row: &Endpoint) -> LabelConfigurationStatus {
    LabelConfigurationStatus {
        derived: texts(&row.labels.info),
        disabled: texts(&row.labels.disabled),
        realized: user_labels(row),
        security_relevant: texts(&row.labels.security()),
    }
}

pub(super) fn health(row: &Endpoint) -> EndpointHealth {
    let (word, connected) = match row.state() {
        EndpointState::Ready => ("OK", true),
        EndpointState::NotReady => ("Failure", false),
        EndpointState::None | EndpointState::Disconnecting | EndpointState::Disconnected => {
            ("Disabled", false)
        }
        EndpointState::Restoring => ("Pending", true),
        EndpointState::WaitingForIdentity
        | EndpointState::WaitingToRegenerate
        | EndpointState::Regenerating => ("Pending", true),
    };
    EndpointHealth {
        bpf: word.to_owned(),
        policy: word.to_owned(),
        connected,
        overall_health: word.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directions_that_programs_look_up_are_enforced() {
        let enabled = |open| {
            let realized = Realized {
                revision: 3,
                open,
                enforced: 0,
            };
            policy(&Endpoint::default(), Some(realized)).policy_enabled
        };

        assert_eq!(
            enabled(endpoint_flags::OPEN_INGRESS | endpoint_flags::OPEN_EGRESS),
            "none"
        );
        assert_eq!(enabled(endpoint_flags::OPEN_EGRESS), "ingress");
        assert_eq!(enabled(endpoint_flags::OPEN_INGRESS), "egress");
        assert_eq!(enabled(0), "both");
    }
}
