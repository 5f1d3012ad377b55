// SPDX-License-Identifier: Apache-2.0

//! A made-up remote cluster, as keys and values of its etcd.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use skep_clustermesh_types::{
    Capabilities, CiliumClusterConfig, ClusterService, Identity, IpIdentityPair, Kind, Node, NodeAddress,
    Ports, ServicePort, ValueError, keys,
};

/// Name and id of the cluster.
pub(crate) const NAME: &str = "remote";
pub(crate) const ID: u32 = 2;

const PODS: u32 = u32::from_be_bytes([10, 64, 0, 1]);
const NODES: u32 = u32::from_be_bytes([172, 20, 0, 1]);
const CLUSTER_IPS: u32 = u32::from_be_bytes([10, 112, 0, 1]);
const FIRST_IDENTITY: u32 = (ID << 16) + 256;

/// How large the cluster is.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct Size {
    /// Pods of the remote cluster; each has an entry of its address.
    #[arg(long, default_value_t = 100_000)]
    pub(crate) pods: u32,
    /// Its nodes.
    #[arg(long, default_value_t = 1_000)]
    pub(crate) nodes: u32,
    /// Its shared services.
    #[arg(long, default_value_t = 10_000)]
    pub(crate) services: u32,
    /// Backends of each service, in the remote cluster.
    #[arg(long = "backends-per-service", default_value_t = 10)]
    pub(crate) backends: u32,
    /// Its identities.
    #[arg(long, default_value_t = 5_000)]
    pub(crate) identities: u32,
}

/// The address of a pod.
pub(crate) fn pod(number: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(PODS + number)
}

pub(crate) fn node(number: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(NODES + number)
}

pub(crate) type Item = (String, Vec<u8>);

/// All values of the cluster: the canaries last.
pub(crate) fn items(size: Size) -> Result<Vec<Item>, ValueError> {
    let mut items = Vec::new();
    for number in 0..size.nodes {
        items.push(node_item(NAME, ID, number, node(number))?);
    }
    for number in 0..size.identities {
        let id = FIRST_IDENTITY + number;
        let identity = Identity {
            id,
            text: format!(
                "k8s:app=app-{number};k8s:io.cilium.k8s.policy.cluster={NAME};k8s:io.kubernetes.pod.namespace=bench;"
            )
            .into(),
        };
        items.push((
            Kind::Identities.key(NAME, false, &id.to_string()),
            identity.encode(),
        ));
    }
    for number in 0..size.pods {
        items.push(address(size, number, number % size.nodes)?);
    }
    for number in 0..size.services {
        items.push(service(size, number)?);
    }
    items.extend(marks(NAME, ID, 255)?);
    Ok(items)
}

/// All values of a cluster that has only nodes, in a mesh of up to 511 clusters.
pub(crate) fn small(number: u32, nodes: u32) -> Result<Vec<Item>, ValueError> {
    let name = small_name(number);
    let mut items = Vec::new();
    for nth in 0..nodes {
        let address = node((number - 1) * nodes + nth);
        items.push(node_item(&name, number, nth, address)?);
    }
    items.extend(marks(&name, number, 511)?);
    Ok(items)
}

/// The name of a small cluster.
pub(crate) fn small_name(number: u32) -> String {
    format!("cluster-{number}")
}

/// The values that say what a cluster is, and that all others are there.
fn marks(name: &str, id: u32, max_connected_clusters: u32) -> Result<Vec<Item>, ValueError> {
    let canary = |kind| (keys::canary(name, kind, false), b"2026-01-01T00:00:00Z".to_vec());
    let mut items: Vec<Item> = Kind::ALL.into_iter().map(canary).collect();
    let config = CiliumClusterConfig {
        id,
        capabilities: Capabilities {
            synced_canaries: true,
            max_connected_clusters,
            ..Capabilities::default()
        },
    };
    items.push((keys::cluster_config(name), config.encode()?));
    Ok(items)
}

fn node_item(cluster: &str, cluster_id: u32, number: u32, address: Ipv4Addr) -> Result<Item, ValueError> {
    let name = format!("node-{number}");
    let node = Node {
        name: name.clone(),
        cluster: cluster.to_owned(),
        ip_addresses: Some(vec![NodeAddress {
            kind: "InternalIP".to_owned(),
            ip: Some(address.into()),
        }]),
        cluster_id,
        source: "custom-resource".to_owned(),
        ..Node::default()
    };
    Ok((Kind::Nodes.key(cluster, false, &name), node.encode()?))
}

/// The entry of the address of pod `number` while it is on node `on`.
pub(crate) fn address(size: Size, number: u32, on: u32) -> Result<Item, ValueError> {
    let pair = IpIdentityPair {
        ip: Some(pod(number).into()),
        host_ip: Some(node(on).into()),
        id: FIRST_IDENTITY + number % size.identities,
        metadata: format!("cilium-global:{NAME}:node-{on}:{number}").into(),
        k8s_namespace: "bench".into(),
        k8s_pod_name: format!("pod-{number}").into(),
        ..IpIdentityPair::default()
    };
    Ok((Kind::Ips.key(NAME, false, &pair.key_name()?), pair.encode()?))
}

fn service(size: Size, number: u32) -> Result<Item, ValueError> {
    let name = format!("service-{number}");
    let port = |port| {
        let port = ServicePort {
            protocol: "TCP".into(),
            port,
        };
        Ports::from([("http".into(), port)])
    };
    let backend = |nth| {
        let pod = pod((number * size.backends + nth) % size.pods);
        (IpAddr::from(pod), port(8080))
    };
    let service = ClusterService {
        cluster: NAME.to_owned(),
        namespace: "bench".to_owned(),
        name: name.clone(),
        frontends: BTreeMap::from([(Ipv4Addr::from_bits(CLUSTER_IPS + number).into(), port(80))]),
        backends: (0..size.backends).map(backend).collect(),
        selector: BTreeMap::from([("app".to_owned(), name)]),
        include_external: true,
        shared: true,
        cluster_id: ID,
        ..ClusterService::default()
    };
    let key = Kind::Services.key(NAME, false, &service.key_name());
    Ok((key, service.encode()?))
}
