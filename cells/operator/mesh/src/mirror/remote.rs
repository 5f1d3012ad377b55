// SPDX-License-Identifier: Apache-2.0

//! Backends of services of remote clusters, by services or by endpoint slices.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use futures::Stream;
use parking_lot::Mutex;
use skep_clustermesh_mesh::{ClusterMesh, ValueObserver};
use skep_clustermesh_types::{
    Capabilities, ClusterEndpointSlice, ClusterName, ClusterService, Kind, RemoteInfo, ServiceMode,
};
use skep_k8s_types::ObjectKey;
use skep_k8s_types::slim::Str;
use skep_kvstore_client::Key;

use super::object::Port;
use crate::remote::{Changes, Remote, key};

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
    sources: Arc<Remote<Source>>,
    /// The service of a slice: it may become that of another.
    service_of: Mutex<BTreeMap<(String, Key), ObjectKey>>,
}

impl RemoteBackends {
    pub(crate) fn new(mode: ServiceMode) -> Self {
        Self {
            mode,
            sources: Arc::default(),
            service_of: Mutex::default(),
        }
    }

    pub(crate) fn changes(&self) -> impl Stream<Item = Changes> + use<> {
        self.sources.clone().changes()
    }

    pub(crate) fn keys(&self) -> Vec<ObjectKey> {
        self.sources.keys()
    }

    pub(crate) fn contains(&self, key: &ObjectKey) -> bool {
        self.sources.contains(key)
    }

    /// The backends of a service, by cluster.
    pub(crate) fn of(&self, key: &ObjectKey) -> BTreeMap<String, Vec<Backend>> {
        self.sources.of(key, Source::backends)
    }

    /// Whether a cluster is configured and its services were never complete.
    pub(crate) fn is_unknown(&self, cluster: &str, mesh: &ClusterMesh) -> bool {
        let was_synced = |kind| self.sources.was_synced(cluster, kind);
        let (services, slices) = (was_synced(Kind::Services), was_synced(Kind::EndpointSlices));
        !(services && slices)
            && mesh.status().into_iter().any(|status| {
                let synced = &status.synced;
                status.name == cluster
                    && !((services || synced.services) && (slices || synced.endpoint_slices != Some(false)))
            })
    }

    /// Changes where the backends of a service of a cluster are.
    fn change(&self, key: ObjectKey, cluster: &str, change: impl FnOnce(&mut Source)) {
        self.sources.change(key, cluster, |value| {
            let mut source = value.take().unwrap_or_default();
            change(&mut source);
            let is_empty = source.service.is_none() && source.slices.is_empty();
            *value = (!is_empty).then_some(source);
        });
    }

    /// Replaces a slice, or removes it.
    fn replace(&self, cluster: &RemoteInfo, name: &Key, slice: Option<&Arc<ClusterEndpointSlice>>) {
        let cluster = cluster.name.as_str();
        let service = slice.and_then(|slice| Some(key(slice.namespace(), slice.service()?)));
        let mut service_of = self.service_of.lock();
        let id = (cluster.to_owned(), name.clone());
        let old = match &service {
            Some(service) => service_of.insert(id, service.clone()),
            None => service_of.remove(&id),
        };
        if let Some(old) = old.filter(|old| Some(old) != service.as_ref()) {
            self.change(old, cluster, |source| _ = source.slices.remove(name));
        }
        if let (Some(service), Some(slice)) = (service, slice) {
            let slice = slice.clone();
            self.change(service, cluster, |source| {
                _ = source.slices.insert(name.clone(), slice)
            });
        }
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
        self.change(key, cluster.name.as_str(), |source| source.service = shared);
    }

    fn delete(&self, cluster: &RemoteInfo, name: &Key) {
        // Values with another name were rejected when they were decoded.
        if let Some((namespace, name)) = name.split_once('/') {
            self.change(key(namespace, name), cluster.name.as_str(), |source| {
                source.service = None
            });
        }
    }

    fn synced(&self, cluster: &ClusterName) {
        self.sources.synced(cluster, Kind::Services);
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
        self.sources.synced(cluster, Kind::EndpointSlices);
    }

    fn is_enabled(&self, capabilities: &Capabilities) -> bool {
        self.mode.reads_slices(&capabilities.endpoint_slices_export_mode)
    }
}
