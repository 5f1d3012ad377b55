// SPDX-License-Identifier: Apache-2.0

//! What entries of slices are made of: CiliumEndpoints, and without these CiliumNodes.

use skep_k8s_crds::endpoint::CoreCiliumEndpoint;
use skep_k8s_crds::shared::{AddressPair, EncryptionSpec, EndpointNetworking, Integer, NamedPort};
use skep_k8s_types::slim::{CiliumEndpoint, CiliumNode, EndpointNamedPort, NodeAddressType, Str};

/// What a slice has of an endpoint; `None` until it has an identity and addresses.
pub(crate) fn entry(endpoint: &CiliumEndpoint) -> Option<CoreCiliumEndpoint> {
    let status = endpoint.status.as_ref()?;
    let networking = status.networking.as_ref()?;
    let owners = &endpoint.metadata.owner_references;
    let pod = owners.iter().find(|owner| owner.kind == "Pod");
    let addressing = networking.addressing.iter().map(|pair| AddressPair {
        ipv4: text(&pair.ipv4),
        ipv6: text(&pair.ipv6),
    });
    let ports: Vec<NamedPort> = status.named_ports.iter().map(named_port).collect();
    Some(CoreCiliumEndpoint {
        // Always written, empty for none.
        encryption: Some(EncryptionSpec {
            key: status.encryption.key.and_then(integer),
        }),
        id: Some(status.identity?.id.unwrap_or_default()),
        name: Some(endpoint.metadata.name.to_string()),
        named_ports: (!ports.is_empty()).then_some(ports),
        networking: Some(EndpointNetworking {
            addressing: addressing.collect(),
            node: text(&networking.node),
        }),
        pod_uid: pod.and_then(|pod| text(&pod.uid)),
        service_account: text(&status.service_account),
    })
}

/// A text that is written; none if it is empty.
pub(crate) fn text(text: &Str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_string())
}

pub(crate) fn integer(number: i64) -> Option<Integer> {
    Integer::try_from(number).ok()
}

fn named_port(port: &EndpointNamedPort) -> NamedPort {
    NamedPort {
        name: text(&port.name),
        port: integer(port.port).filter(|port| *port != 0),
        protocol: text(&port.protocol),
    }
}

/// The address by which other nodes reach a node: the first internal one, IPv4 before IPv6.
pub(crate) fn address(node: &CiliumNode) -> Option<&str> {
    let internal = node
        .spec
        .addresses
        .iter()
        .filter(|address| address.kind == NodeAddressType::InternalIp);
    let addresses = internal.map(|address| &*address.ip).filter(|ip| !ip.is_empty());
    addresses.min_by_key(|ip| ip.contains(':'))
}
