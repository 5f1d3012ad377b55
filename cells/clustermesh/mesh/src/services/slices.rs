// SPDX-License-Identifier: Apache-2.0

//! Endpoint slices: the backends of a service are those of all of its slices.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use skep_clustermesh_types::{Capabilities, ClusterEndpointSlice, RemoteInfo};
use skep_kvstore_client::Key;
use skep_loadbalancer_model::ServiceName;

use super::{Desired, Place, ServiceObserver};
use crate::observer::ValueObserver;

/// Hands the slices of each service to the one who writes services.
#[derive(Debug)]
pub(super) struct SliceObserver {
    services: Arc<ServiceObserver>,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    /// Slices of a service, by name.
    slices: HashMap<Place, BTreeMap<Key, Arc<ClusterEndpointSlice>>>,
    /// The service of a slice: it may become that of another.
    services: HashMap<(u32, Key), ServiceName>,
}

impl SliceObserver {
    pub(super) fn new(services: Arc<ServiceObserver>) -> Self {
        Self {
            services,
            known: Mutex::default(),
        }
    }

    /// Replaces a slice, or removes it.
    fn replace(&self, cluster: u32, name: &Key, new: Option<&Arc<ClusterEndpointSlice>>) {
        let mut known = self.known.lock();
        let service = new.and_then(|slice| Some(ServiceName::new(slice.namespace(), slice.service()?)));
        let id = (cluster, name.clone());
        let old = match &service {
            Some(service) => known.services.insert(id, service.clone()),
            None => known.services.remove(&id),
        };
        if let Some(old) = old.filter(|old| Some(old) != service.as_ref()) {
            let place = (cluster, old);
            if let Some(slices) = known.slices.get_mut(&place) {
                slices.remove(name);
            }
            self.note(&mut known, place);
        }
        if let (Some(service), Some(slice)) = (service, new) {
            let place = (cluster, service);
            let slices = known.slices.entry(place.clone()).or_default();
            slices.insert(name.clone(), slice.clone());
            self.note(&mut known, place);
        }
    }

    /// Noted under the lock: the last one counts.
    fn note(&self, known: &mut Known, place: Place) {
        let slices: Vec<_> = known
            .slices
            .get(&place)
            .into_iter()
            .flat_map(BTreeMap::values)
            .cloned()
            .collect();
        let desired = if slices.is_empty() {
            known.slices.remove(&place);
            Desired::Gone
        } else {
            Desired::Slices(slices)
        };
        self.services.note(place, desired);
    }
}

impl ValueObserver<ClusterEndpointSlice> for SliceObserver {
    fn upsert(&self, cluster: &RemoteInfo, name: &Key, slice: &Arc<ClusterEndpointSlice>) {
        self.replace(cluster.id, name, Some(slice));
    }

    fn delete(&self, cluster: &RemoteInfo, name: &Key) {
        self.replace(cluster.id, name, None);
    }

    fn is_enabled(&self, capabilities: &Capabilities) -> bool {
        self.services
            .mode
            .reads_slices(&capabilities.endpoint_slices_export_mode)
    }

    fn flushed(&self) -> BoxFuture<'_, ()> {
        ValueObserver::flushed(&*self.services).boxed()
    }
}
