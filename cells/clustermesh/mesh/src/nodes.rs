// SPDX-License-Identifier: Apache-2.0

//! Cell: nodes of remote clusters.
//! Requires: the node manager, the mesh. Provides: an observer.
//!
//! The node manager says what the nodes are in the ipcache, and gives them ids. Its maps are not pruned before the nodes of all
//! remote clusters were read, or `clustermesh-sync-timeout` is over.

use std::net::IpAddr;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use hive::{BoxError, Cell, Health, Jobs, Member};
use skep_clustermesh_types::{Kind, Node as RemoteNode, NodeAddress, RemoteInfo};
use skep_ipcache::Source;
use skep_k8s_types::slim::NodeAddressType;
use skep_kvstore_client::Key;
use skep_node_manager::{Node, NodeKey, NodeManager};

use crate::batch::{Batches, in_table};
use crate::complete::InitialSync;
use crate::mesh::ClusterMesh;
use crate::metrics::ClusterMeshMetrics;
use crate::observer::{MeshObserver, ValueObserver, observe};

const BATCH: usize = 1000;

hive::catalogue!(cell);

pub fn cell() -> Cell {
    Cell::module("clustermesh-nodes", "Nodes of remote clusters")
        .provide(new_observer)
        .run(start)
}

/// Passes remote nodes to the node manager. `None` is a node that is gone.
#[derive(Debug)]
struct NodeObserver {
    batches: Arc<Batches<NodeKey, Option<Node>>>,
}

/// `name` is that of the node.
fn key(cluster: &RemoteInfo, name: &str) -> NodeKey {
    NodeKey::new(cluster.name.as_str(), name)
}

impl ValueObserver<RemoteNode> for NodeObserver {
    fn upsert(&self, cluster: &RemoteInfo, name: &Key, node: &Arc<RemoteNode>) {
        self.batches
            .note(key(cluster, name), Some(convert(cluster, node)));
    }

    fn delete(&self, cluster: &RemoteInfo, name: &Key) {
        self.batches.note(key(cluster, name), None);
    }

    fn flushed(&self) -> BoxFuture<'_, ()> {
        self.batches.flushed().boxed()
    }
}

/// The node as the node manager has it.
fn convert(cluster: &RemoteInfo, remote: &RemoteNode) -> Node {
    let address = |address: &NodeAddress| {
        let kind = NodeAddressType::from(address.kind.as_str());
        Some((kind, address.ip?))
    };
    let some = |addresses: [Option<IpAddr>; 2]| addresses.into_iter().flatten().collect();
    let mut node = Node::new(key(cluster, &remote.name), Source::ClusterMesh);
    node.cluster_id = cluster.id;
    node.addresses = remote.ip_addresses.iter().flatten().filter_map(address).collect();
    let networks = [
        (&remote.ipv4_alloc_cidr, &remote.ipv4_secondary_alloc_cidrs),
        (&remote.ipv6_alloc_cidr, &remote.ipv6_secondary_alloc_cidrs),
    ];
    for (primary, further) in networks {
        node.pod_cidrs
            .extend(primary.iter().chain(further.iter().flatten()));
    }
    node.health = some([remote.ipv4_health_ip, remote.ipv6_health_ip]);
    node.ingress = some([remote.ipv4_ingress_ip, remote.ipv6_ingress_ip]);
    node.encryption_key = remote.encryption_key;
    node.wireguard_key = remote.wireguard_pub_key.as_str().into();
    node.boot_id = remote.boot_id.as_str().into();
    node.labels = remote.labels.iter().flatten().collect();
    node.annotations = remote.annotations.iter().flatten().collect();
    node
}

fn new_observer(metrics: Arc<ClusterMeshMetrics>) -> (Arc<NodeObserver>, Member<Arc<dyn MeshObserver>>) {
    let observer = Arc::new(NodeObserver {
        batches: Arc::new(Batches::new(Kind::Nodes, BATCH, metrics)),
    });
    let member = Member(observe::<RemoteNode>(observer.clone()));
    (observer, member)
}

fn start(
    mesh: Arc<ClusterMesh>,
    observer: Arc<NodeObserver>,
    manager: NodeManager,
    jobs: Jobs,
    health: Health,
) -> Result<(), BoxError> {
    if !mesh.is_enabled() {
        return Ok(());
    }
    let guard = manager.register_source("clustermesh")?;
    let writer = manager.clone();
    observer
        .batches
        .clone()
        .spawn(&jobs, "write-nodes", move |batch| {
            let mut txn = writer.write();
            for (key, node) in batch {
                match node {
                    Some(node) => writer.upsert(&mut txn, node)?,
                    None => writer.delete(&mut txn, &key, Source::ClusterMesh)?,
                };
            }
            txn.commit();
            Ok(in_table())
        })?;
    let awaited = InitialSync {
        kinds: &[Kind::Nodes],
        what: "Nodes of remote clusters",
        done: move || {
            let mut txn = manager.write();
            guard.done(&mut txn)?;
            txn.commit();
            Ok(())
        },
    };
    awaited.spawn(mesh, &jobs, "wait-nodes", health)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_keep_all_that_the_datapath_uses() {
        let cluster = RemoteInfo {
            name: "alder".parse().expect("it is a name"),
            id: 7,
            max_connected_clusters: Default::default(),
        };
        let text = br#"{"Name":"n1","Cluster":"alder","IPAddresses":[{"Type":"InternalIP","IP":"192.0.2.7"},
            {"Type":"CiliumInternalIP","IP":"10.4.0.9"},{"Type":"Hostname","IP":null}],
            "IPv4AllocCIDR":{"IP":"10.4.1.0","Mask":"////AA=="},"IPv4HealthIP":"10.4.1.3","IPv6IngressIP":"fd00::4",
            "ClusterID":7,"EncryptionKey":3,"WireguardPubKey":"key","BootID":"boot","Labels":{"zone":"a"},"Annotations":null}"#;
        let remote = RemoteNode::decode(&cluster, "n1", text).expect("it is valid");

        let node = convert(&cluster, &remote);

        assert_eq!(node.key, NodeKey::new("alder", "n1"));
        assert_eq!((node.source, node.cluster_id), (Source::ClusterMesh, 7));
        assert_eq!(node.node_ip(true), Some("192.0.2.7".parse().expect("valid")));
        assert_eq!(node.reachable().count(), 2);
        assert_eq!(node.pod_cidrs, ["10.4.1.0/24".parse().expect("valid")]);
        assert_eq!(node.health, ["10.4.1.3".parse::<IpAddr>().expect("valid")]);
        assert_eq!(node.ingress, ["fd00::4".parse::<IpAddr>().expect("valid")]);
        assert_eq!((node.encryption_key, node.wireguard_key.as_str()), (3, "key"));
        assert_eq!(node.boot_id.as_str(), "boot");
        assert_eq!(node.labels.get("zone"), Some("a"));
    }
}
