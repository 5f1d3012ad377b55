// SPDX-License-Identifier: Apache-2.0

//! Backends of services of remote clusters, by services or by endpoint slices.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use skep_clustermesh_mesh::{ClusterMesh, ValueObserver};
use skep_clustermesh_types::{
    Capabilities, ClusterEndpointSlice, ClusterName, ClusterService, Kind, RemoteInfo, ServiceMode,
};
use skep_k8s_types::ObjectKey;
use skep_k8s_types::slim::Str;
use skep_kvstore_client::Key;
use tokio::sync::Notify;

use super::object::Port;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Backend {
    pub(crate) ip: IpAddr,
    pub(crate) ports: Vec<Port>,
    pub(crate) hostname: Option<Str>,
}

/// Where the backends of a service of a cluster are.
#[derive(Debug, Default)]
struct Source {
    service: Option<Arc<ClusterService>>,
    slices: BTreeMap<Key, Arc<ClusterEndpointSlice>>,
}

#[derive(Debug)]
pub(crate) struct RemoteBackends {
    mode: ServiceMode,
    known: Mutex<Known>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct Known {
    services: BTreeMap<ObjectKey, BTreeMap<String, Source>>,
    /// The service of a slice: it may become that of another.
    service_of: BTreeMap<(String, Key), ObjectKey>,
    synced: BTreeSet<(String, Kind)>,
    changes: Changes,
}

#[derive(Debug, Default)]
pub(crate) struct Changes {
    pub(crate) keys: BTreeSet<ObjectKey>,
    pub(crate) is_cluster_synced: bool,
}

impl Known {
    /// Changes where the backends of a service of a cluster are.
    fn change(&mut self, key: ObjectKey, cluster: &str, change: impl FnOnce(&mut Source)) {
        let sources = self.services.entry(key.clone()).or_default();
        let source = sources.entry(cluster.to_owned()).or_default();
        change(source);
        if source.service.is_none() && source.slices.is_empty() {
            sources.remove(cluster);
        }
        if sources.is_empty() {
            self.services.remove(&key);
        }
        self.changes.keys.insert(key);
    }
}

impl RemoteBackends {
    pub(crate) fn new(mode: ServiceMode) -> Self {
        Self {
            mode,
            known: Mutex::default(),
            changed: Notify::new(),
        }
    }

    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// What has changed since the last call.
    pub(crate) fn take_changes(&self) -> Changes {
        std::mem::take(&mut self.known.lock().changes)
    }

    pub(crate) fn keys(&self) -> Vec<ObjectKey> {
        self.known.lock().services.keys().cloned().collect()
    }

    pub(crate) fn contains(&self, key: &ObjectKey) -> bool {
        self.known.lock().services.contains_key(key)
    }

    /// The backends of a service, by cluster.
    pub(crate) fn of(&self, key: &ObjectKey) -> BTreeMap<String, Vec<Backend>> {
        let known = self.known.lock();
        let sources = known.services.get(key).into_iter().flatten();
        sources
            .map(|(cluster, source)| (cluster.clone(), source.backends()))
            .collect()
    }

    /// Clusters that are configured and whose services were never complete.
    pub(crate) fn unknown_clusters(&self, mesh: &ClusterMesh) -> BTreeSet<String> {
        let known = self.known.lock();
        let unknown = mesh.status().into_iter().filter(|status| {
            let was_synced = |kind| known.synced.contains(&(status.name.clone(), kind));
            let services = status.synced.services || was_synced(Kind::Services);
            let slices = status.synced.endpoint_slices != Some(false) || was_synced(Kind::EndpointSlices);
            !(services && slices)
        });
        unknown.map(|status| status.name).collect()
    }

    fn note(&self, change: impl FnOnce(&mut Known)) {
        change(&mut self.known.lock());
        self.changed.notify_one();
    }

    fn note_synced(&self, cluster: &ClusterName, kind: Kind) {
        self.note(|known| {
            known.synced.insert((cluster.to_string(), kind));
            known.changes.is_cluster_synced = true;
        });
    }

    /// Replaces a slice, or removes it.
    fn replace(&self, cluster: &RemoteInfo, name: &Key, slice: Option<&Arc<ClusterEndpointSlice>>) {
        let cluster = cluster.name.as_str();
        let service = slice.and_then(|slice| Some(key(slice.namespace(), slice.service()?)));
        self.note(|known| {
            let id = (cluster.to_owned(), name.clone());
            let old = match &service {
                Some(service) => known.service_of.insert(id, service.clone()),
                None => known.service_of.remove(&id),
            };
            if let Some(old) = old.filter(|old| Some(old) != service.as_ref()) {
                known.change(old, cluster, |source| {
                    source.slices.remove(name);
                });
            }
            if let (Some(service), Some(slice)) = (service, slice) {
                known.change(service, cluster, |source| {
                    source.slices.insert(name.clone(), slice.clone());
                });
            }
        });
    }
}

fn key(namespace: &str, name: &str) -> ObjectKey {
    ObjectKey {
        namespace: Str::new(namespace),
        name: Str::new(name),
    }
}

impl Source {
    fn backends(&self) -> Vec<Backend> {
        let mut backends: BTreeMap<IpAddr, Backend> = BTreeMap::new();
        let mut add = |ip: IpAddr, ports: Vec<Port>, hostname: Option<Str>| {
            let backend = backends.entry(ip).or_insert_with(|| Backend {
                ip,
                ports: Vec::new(),
                hostname: None,
            });
            backend.ports.extend(ports);
            backend.ports.sort();
            backend.ports.dedup();
            backend.hostname = backend.hostname.take().or(hostname);
        };
        if let Some(service) = &self.service {
            for (ip, ports) in &service.backends {
                let hostname = service.hostnames.get(&ip.to_string()).map(Str::new);
                let port = |(name, port): &(Str, skep_clustermesh_types::ServicePort)| Port {
                    name: name.clone(),
                    protocol: port.protocol.clone(),
                    port: port.port.into(),
                };
                add(*ip, ports.iter().map(port).collect(), hostname);
            }
        }
        for slice in self.slices.values() {
            let port = |port: &skep_clustermesh_types::EndpointPort| {
                Some(Port {
                    name: Str::new(port.name()),
                    protocol: match port.protocol() {
                        "" => Str::const_new("TCP"),
                        protocol => Str::new(protocol),
                    },
                    port: port.port?,
                })
            };
            let ports: Vec<Port> = slice.ports.iter().filter_map(port).collect();
            for endpoint in &slice.endpoints {
                let conditions = endpoint.conditions.unwrap_or_default();
                let is_ready = conditions.ready.unwrap_or(true);
                if !is_ready && !conditions.serving.unwrap_or(true) {
                    continue;
                }
                let hostname = Some(endpoint.hostname()).filter(|name| !name.is_empty());
                for ip in endpoint.addresses.iter().filter_map(|ip| ip.parse().ok()) {
                    add(ip, ports.clone(), hostname.map(Str::new));
                }
            }
        }
        backends.into_values().collect()
    }
}

impl ValueObserver<ClusterService> for RemoteBackends {
    fn upsert(&self, cluster: &RemoteInfo, _name: &Key, service: &Arc<ClusterService>) {
        // One that is not shared any longer counts as gone.
        let shared = service.shared.then(|| service.clone());
        let key = key(&service.namespace, &service.name);
        self.note(|known| known.change(key, cluster.name.as_str(), |source| source.service = shared));
    }

    fn delete(&self, cluster: &RemoteInfo, name: &Key) {
        // Values with another name were rejected when they were decoded.
        let Some((namespace, name)) = name.split_once('/') else {
            return;
        };
        let key = key(namespace, name);
        self.note(|known| known.change(key, cluster.name.as_str(), |source| source.service = None));
    }

    fn synced(&self, cluster: &ClusterName) {
        self.note_synced(cluster, Kind::Services);
    }

    fn is_enabled(&self, capabilities: &Capabilities) -> bool {
        self.mode
            .reads_services(&capabilities.endpoint_slices_export_mode)
    }
}

impl ValueObserver<ClusterEndpointSlice> for RemoteBackends {
    fn upsert(&self, cluster: &RemoteInfo, name: &Key, slice: &Arc<ClusterEndpointSlice>) {
        self.replace(cluster, name, Some(slice));
    }

    fn delete(&self, cluster: &RemoteInfo, name: &Key) {
        self.replace(cluster, name, None);
    }

    fn synced(&self, cluster: &ClusterName) {
        self.note_synced(cluster, Kind::EndpointSlices);
    }

    fn is_enabled(&self, capabilities: &Capabilities) -> bool {
        self.mode.reads_slices(&capabilities.endpoint_slices_export_mode)
    }
}
