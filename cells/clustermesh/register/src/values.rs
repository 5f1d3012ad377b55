// SPDX-License-Identifier: Apache-2.0

//! The node and its endpoints → values of the key-value store.

use std::{collections::BTreeMap, net::IpAddr};

use skep_clustermesh_types::{IpIdentityPair, NamedPort, Node, NodeAddress};
use skep_endpoint::{Endpoint, Phase};
use skep_identity::NumericIdentity;
use skep_node_local::LocalNode;

/// Values by name.
pub(crate) type Values = BTreeMap<String, Vec<u8>>;

/// Name and id of this cluster.
pub(crate) struct Cluster {
    pub(crate) name: String,
    pub(crate) id: u32,
}

/// The value of the node.
pub(crate) fn node(local: &LocalNode, cluster: &Cluster) -> Option<Vec<u8>> {
    let addresses = local.addresses.iter().map(|(kind, ip)| NodeAddress {
        kind: kind.to_string(),
        ip: Some(*ip),
    });
    let of = |all: &[IpAddr], is_ipv4| all.iter().copied().find(|ip| ip.is_ipv4() == is_ipv4);
    let cidrs = |is_ipv4| {
        let mut all = local
            .pod_cidrs
            .iter()
            .filter(|cidr| cidr.addr().is_ipv4() == is_ipv4);
        let first = all.next().copied();
        let others: Vec<_> = all.copied().collect();
        (first, (!others.is_empty()).then_some(others))
    };
    let texts = |labels: &skep_k8s_types::slim::Labels| {
        let pairs = labels
            .iter()
            .map(|(key, value)| (key.to_owned(), value.to_owned()));
        Some(pairs.collect::<BTreeMap<_, _>>()).filter(|all| !all.is_empty())
    };
    let (ipv4_alloc_cidr, ipv4_secondary_alloc_cidrs) = cidrs(true);
    let (ipv6_alloc_cidr, ipv6_secondary_alloc_cidrs) = cidrs(false);
    let node = Node {
        name: local.name.to_string(),
        cluster: cluster.name.clone(),
        ip_addresses: Some(addresses.collect()),
        ipv4_alloc_cidr,
        ipv4_secondary_alloc_cidrs,
        ipv6_alloc_cidr,
        ipv6_secondary_alloc_cidrs,
        ipv4_health_ip: of(&local.health, true),
        ipv6_health_ip: of(&local.health, false),
        ipv4_ingress_ip: of(&local.ingress, true),
        ipv6_ingress_ip: of(&local.ingress, false),
        cluster_id: cluster.id,
        source: "local".to_owned(),
        labels: texts(&local.labels),
        annotations: texts(&local.annotations),
        boot_id: local.boot_id.to_string(),
        ..Node::default()
    };
    node.encode().ok()
}

/// The values of the addresses of an endpoint, once it has an identity. Those for health and Ingresses are in the value of the node.
pub(crate) fn addresses<'a>(
    endpoint: &'a Endpoint,
    local: &'a LocalNode,
    cluster: &'a Cluster,
) -> impl Iterator<Item = (String, Vec<u8>)> + 'a {
    let is_there = !endpoint.is_host && matches!(endpoint.phase, Phase::Live | Phase::Restored);
    let is_of_node = |id: NumericIdentity| matches!(id, NumericIdentity::HEALTH | NumericIdentity::INGRESS);
    let identity = endpoint.identity.filter(|id| is_there && !is_of_node(*id));
    let pod = endpoint.pod.as_deref();
    let ports = pod.map(|pod| &*pod.named_ports).unwrap_or_default();
    let ports: Vec<NamedPort> = ports
        .iter()
        .map(|port| NamedPort {
            name: port.name.as_str().into(),
            port: port.port,
            protocol: port.protocol.as_str().into(),
        })
        .collect();
    identity.into_iter().flat_map(move |identity| {
        let ports = ports.clone();
        endpoint.spec.addresses().filter_map(move |ip| {
            let pair = IpIdentityPair {
                ip: Some(ip),
                // Tunnels end at IPv4 addresses, if there are any.
                host_ip: local.node_ip(true).or_else(|| local.node_ip(false)),
                id: identity.get(),
                metadata: format!("cilium-global:{}:{}:{}", cluster.name, local.name, endpoint.id).into(),
                k8s_namespace: endpoint.spec.namespace.as_str().into(),
                k8s_pod_name: endpoint.spec.pod.as_str().into(),
                k8s_service_account: pod
                    .map(|pod| pod.service_account.as_str())
                    .unwrap_or_default()
                    .into(),
                named_ports: ports.clone(),
                ..IpIdentityPair::default()
            };
            Some((ip.to_string(), pair.encode().ok()?))
        })
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::{Value, json};
    use skep_endpoint::EndpointSpec;
    use skep_identity::NumericIdentity;
    use skep_k8s_types::slim::NodeAddressType;

    use super::*;

    fn local() -> LocalNode {
        LocalNode {
            name: "n1".into(),
            addresses: vec![
                (NodeAddressType::InternalIp, "192.168.5.11".parse().unwrap()),
                (NodeAddressType::CiliumInternalIp, "10.0.1.7".parse().unwrap()),
            ],
            pod_cidrs: vec!["10.0.1.0/24".parse().unwrap(), "10.0.2.0/24".parse().unwrap()],
            health: vec!["10.0.1.91".parse().unwrap()],
            boot_id: "b".into(),
            ..LocalNode::default()
        }
    }

    fn cluster() -> Cluster {
        Cluster {
            name: "alder".to_owned(),
            id: 3,
        }
    }

    #[test]
    fn a_node_has_the_form_of_ciliums() {
        let found: Value = serde_json::from_slice(&node(&local(), &cluster()).unwrap()).unwrap();

        let expected = json!({
            "Name": "n1", "Cluster": "alder", "ClusterID": 3,
            "IPAddresses": [
                { "Type": "InternalIP", "IP": "192.168.5.11" }, { "Type": "CiliumInternalIP", "IP": "10.0.1.7" },
            ],
            "IPv4AllocCIDR": { "IP": "10.0.1.0", "Mask": "////AA==" },
            "IPv4SecondaryAllocCIDRs": [{ "IP": "10.0.2.0", "Mask": "////AA==" }],
            "IPv6AllocCIDR": null, "IPv6SecondaryAllocCIDRs": null,
            "IPv4HealthIP": "10.0.1.91", "IPv6HealthIP": "", "IPv4IngressIP": "", "IPv6IngressIP": "",
            "Source": "local", "EncryptionKey": 0, "Labels": null, "Annotations": null, "WireguardPubKey": "",
            "BootID": "b",
        });
        assert_eq!(found, expected);
    }

    #[test]
    fn addresses_are_those_of_endpoints_with_an_identity() {
        let (local, cluster) = (local(), cluster());
        let mut endpoint = Endpoint {
            id: 2191,
            spec: Arc::new(EndpointSpec {
                ipv4: Some("10.0.1.23".parse().unwrap()),
                namespace: "shop".to_owned(),
                pod: "cart-0".to_owned(),
                ..EndpointSpec::default()
            }),
            ..Endpoint::default()
        };
        assert_eq!(addresses(&endpoint, &local, &cluster).count(), 0);

        endpoint.identity = Some(NumericIdentity::new(52310));

        let all: Vec<_> = addresses(&endpoint, &local, &cluster).collect();
        assert_eq!(all.len(), 1);
        let (name, value) = &all[0];
        let found: Value = serde_json::from_slice(value).unwrap();
        assert_eq!(name, "10.0.1.23");
        let expected = json!({
            "IP": "10.0.1.23", "Mask": null, "HostIP": "192.168.5.11", "ID": 52310, "Key": 0,
            "Metadata": "cilium-global:alder:n1:2191", "K8sNamespace": "shop", "K8sPodName": "cart-0",
        });
        assert_eq!(found, expected);

        endpoint.phase = Phase::Disconnecting;
        assert_eq!(addresses(&endpoint, &local, &cluster).count(), 0);
    }
}
