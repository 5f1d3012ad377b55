// SPDX-License-Identifier: Apache-2.0

//! Cell: addresses of remote clusters in the ipcache.
//! Requires: the ipcache, the mesh. Provides: an observer.
//!
//! Each cluster is an owner of its own: two clusters that publish one address do not delete each other's claim, and sources of the
//! local cluster are stronger than both. The map is not pruned before the addresses of all remote clusters were read, or
//! `clustermesh-sync-timeout` is over.

use std::net::IpAddr;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use hive::{BoxError, Cell, Cfg, Health, Jobs, Member};
use skep_base_settings::AddressFamilies;
use skep_clustermesh_types::{ClusterName, IpIdentityPair, Kind, NamedPort, RemoteInfo};
use skep_identity::NumericIdentity;
use skep_ipcache::{Claim, Owner, PodMetadata, Prefix, ResourceId, Source, Writer};
use skep_kvstore_client::Key;

use crate::batch::{Batches, Realized, reconciled};
use crate::complete::InitialSync;
use crate::mesh::ClusterMesh;
use crate::metrics::ClusterMeshMetrics;
use crate::observer::{MeshObserver, ValueObserver, observe};

const BATCH: usize = 2000;

hive::catalogue!(cell);

pub fn cell() -> Cell {
    Cell::module(
        "clustermesh-ipcache",
        "Addresses of remote clusters in the ipcache",
    )
    .provide(new_observer)
    .run(start)
}

type Place = (ClusterName, Prefix);

/// Claims remote addresses. `None` is an address that is gone.
#[derive(Debug)]
struct AddressObserver {
    batches: Arc<Batches<Place, Option<Arc<IpIdentityPair>>>>,
    families: Cfg<AddressFamilies>,
}

impl AddressObserver {
    fn note(&self, cluster: &RemoteInfo, name: &Key, desired: Option<Arc<IpIdentityPair>>) {
        // Values with another name were rejected when they were decoded.
        let Some(prefix) = prefix(name) else {
            return;
        };
        let is_on = match prefix.net().addr() {
            IpAddr::V4(_) => self.families.ipv4,
            IpAddr::V6(_) => self.families.ipv6,
        };
        if is_on {
            self.batches.note((cluster.name.clone(), prefix), desired);
        }
    }
}

impl ValueObserver<IpIdentityPair> for AddressObserver {
    fn upsert(&self, cluster: &RemoteInfo, name: &Key, pair: &Arc<IpIdentityPair>) {
        self.note(cluster, name, Some(pair.clone()));
    }

    fn delete(&self, cluster: &RemoteInfo, name: &Key) {
        self.note(cluster, name, None);
    }

    fn flushed(&self) -> BoxFuture<'_, ()> {
        self.batches.flushed().boxed()
    }
}

/// What the entry of a name is about: an address, or a network, even if that has only one address.
fn prefix(name: &str) -> Option<Prefix> {
    match name.parse::<IpAddr>() {
        Ok(address) => Some(Prefix::address(address)),
        Err(_) => name.parse().ok().map(Prefix::cidr),
    }
}

fn owner(cluster: &ClusterName) -> Owner {
    Owner::new(
        Source::ClusterMesh,
        ResourceId::new("cluster", "", cluster.as_str()),
    )
}

/// No flag says that the address is of another cluster: as in Cilium's entries, that is one of the addresses of nodes.
fn claim(owner: Owner, pair: &IpIdentityPair) -> Claim {
    Claim::identity(owner, NumericIdentity::new(pair.identity()))
        .tunnel_peer(pair.host_ip)
        .encrypt_key(pair.key)
        .pod(pod(pair))
}

/// The pod that has the address, if one has.
fn pod(pair: &IpIdentityPair) -> Option<Arc<PodMetadata>> {
    if pair.k8s_pod_name.is_empty() {
        return None;
    }
    let port = |port: &NamedPort| {
        let protocol = PodMetadata::protocol(&port.protocol)?;
        Some((port.name.clone(), protocol, port.port))
    };
    let mut named_ports: Vec<_> = pair.named_ports.iter().filter_map(port).collect();
    named_ports.sort_unstable();
    Some(Arc::new(PodMetadata {
        namespace: pair.k8s_namespace.clone(),
        name: pair.k8s_pod_name.clone(),
        named_ports: named_ports.into(),
    }))
}

fn new_observer(
    metrics: Arc<ClusterMeshMetrics>,
    families: Cfg<AddressFamilies>,
) -> (Arc<AddressObserver>, Member<Arc<dyn MeshObserver>>) {
    let observer = Arc::new(AddressObserver {
        batches: Arc::new(Batches::new(Kind::Ips, BATCH, metrics)),
        families,
    });
    let member = Member(observe::<IpIdentityPair>(observer.clone()));
    (observer, member)
}

fn write(
    writer: &Writer,
    batch: Vec<(Place, Option<Arc<IpIdentityPair>>)>,
) -> Result<Realized, statedb::Error> {
    // Owners share their texts; a batch is mostly of one cluster.
    let mut last: Option<(ClusterName, Owner)> = None;
    let mut txn = writer.write();
    for ((cluster, prefix), desired) in batch {
        let owner = match &last {
            Some((same, owner)) if *same == cluster => owner.clone(),
            _ => owner(&cluster),
        };
        last = Some((cluster, owner.clone()));
        match desired {
            Some(pair) => drop(writer.upsert(&mut txn, prefix, claim(owner, &pair))?),
            None => drop(writer.delete(&mut txn, prefix, &owner)?),
        }
    }
    Ok(reconciled(writer.table(), &txn.commit()))
}

fn start(
    mesh: Arc<ClusterMesh>,
    observer: Arc<AddressObserver>,
    writer: Writer,
    jobs: Jobs,
    health: Health,
) -> Result<(), BoxError> {
    if !mesh.is_enabled() {
        return Ok(());
    }
    let guard = writer.register_source("clustermesh")?;
    let writing = writer.clone();
    observer
        .batches
        .clone()
        .spawn(&jobs, "write-addresses", move |batch| Ok(write(&writing, batch)?))?;
    let awaited = InitialSync {
        kinds: &[Kind::Ips],
        what: "Addresses of remote clusters",
        done: move || {
            let mut txn = writer.write();
            guard.done(&mut txn)?;
            txn.commit();
            Ok(())
        },
    };
    awaited.spawn(mesh, &jobs, "wait-addresses", health)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use skep_ipcache::EndpointFlags;

    use super::*;

    #[test]
    fn addresses_of_pods_have_a_tunnel_but_no_flags() {
        let pair = IpIdentityPair {
            ip: Some(IpAddr::from([10, 4, 1, 15])),
            host_ip: Some(IpAddr::from([192, 0, 2, 7])),
            id: 458_753,
            ..IpIdentityPair::default()
        };

        let claim = claim(owner(&"alder".parse().expect("it is a name")), &pair);

        assert_eq!(claim.flags, EndpointFlags::empty());
        assert_eq!(claim.tunnel_peer, pair.host_ip);
    }
}
