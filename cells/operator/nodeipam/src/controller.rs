// SPDX-License-Identifier: Apache-2.0

//! The controller: Services, nodes and endpoint slices in, the ingress of Services out.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures::FutureExt;
use futures::future::ready;
use serde_json::{Value, json};
use skep_base_metrics::workqueue::WorkqueueRecorder;
use skep_k8s_client::{ApiError, Client, Subresource, WriteOptions};
use skep_k8s_controller::{
    Change, Controller, Failure, Reconciler, RequestError, Retry, Store, Watches, Work, request,
};
use skep_k8s_types::slim::{EndpointSlice, Node, Service, Str, TrafficPolicy};
use skep_k8s_types::{ObjectKey, Resource};

use crate::addresses::{SelectorInvalid, has_class, ingress, is_responsible, usable};

#[derive(Debug, thiserror::Error)]
pub(crate) enum IngressError {
    #[error(transparent)]
    Selector(#[from] SelectorInvalid),
    #[error(transparent)]
    Request(#[from] RequestError),
}

impl Failure for IngressError {
    fn retry(&self) -> Retry {
        match self {
            Self::Selector(_) => Retry::OnChange,
            Self::Request(error) => error.retry(),
        }
    }
}

pub(crate) struct NodeIpam {
    client: Arc<dyn Client>,
    is_default: bool,
    services: Store<Service>,
    nodes: Store<Node>,
    slices: Store<EndpointSlice>,
    /// Services that get addresses of nodes.
    wanted: BTreeMap<ObjectKey, Arc<Service>>,
    /// Of each slice its Service, and the nodes with ready endpoints.
    ready: BTreeMap<ObjectKey, (ObjectKey, BTreeSet<Str>)>,
    /// Addresses that were written, by Service: those of nodes that are gone by now, too.
    written: BTreeMap<ObjectKey, BTreeSet<String>>,
}

pub(crate) fn controller(
    client: &Arc<dyn Client>,
    is_default: bool,
    queue: WorkqueueRecorder,
) -> Controller<NodeIpam> {
    let ipam = NodeIpam {
        client: client.clone(),
        is_default,
        services: Store::of_keys(),
        nodes: Store::default(),
        slices: Store::of_keys(),
        wanted: BTreeMap::new(),
        ready: BTreeMap::new(),
        written: BTreeMap::new(),
    };
    Controller::new(ipam, queue)
        .watch_all::<Service>(client)
        .watch_all::<Node>(client)
        .watch_all::<EndpointSlice>(client)
}

impl Reconciler for NodeIpam {
    type Key = ObjectKey;
    type Output = ();
    type Error = IngressError;
    const KEYS: &'static str = "services";
    const FAILED: &'static str = "without their addresses";

    fn reconcile(&mut self, key: &ObjectKey) -> Work<Self> {
        let Some(service) = self.wanted.get(key) else {
            return ready(Ok(())).boxed();
        };
        let ingress = match self.ingress(key, service) {
            Ok(ingress) => ingress,
            Err(error) => return ready(Err(error.into())).boxed(),
        };
        let mut shown = service
            .status
            .load_balancer
            .ingress
            .iter()
            .map(|entry| &*entry.ip);
        // The ingress of a Service without class is left to others if no node serves it.
        let is_left = ingress.is_empty() && !has_class(service);
        let own = is_left.then(|| self.own(key));
        let is_shown = match &own {
            Some(own) => !shown.any(|address| own.contains(address)),
            None => shown.eq(ingress.iter().map(String::as_str)),
        };
        if is_shown {
            return ready(Ok(())).boxed();
        }
        let written = self.written.entry(key.clone()).or_default();
        written.extend(ingress.iter().cloned());
        let (client, key) = (self.client.clone(), key.clone());
        async move {
            match write(&*client, &key, &ingress, own.as_ref()).await {
                // Its deletion is on the way.
                Err(error) if error.is_not_found() => Ok(()),
                written => Ok(written?),
            }
        }
        .boxed()
    }

    fn total(&self) -> usize {
        self.wanted.len()
    }
}

impl NodeIpam {
    fn ingress(&self, key: &ObjectKey, service: &Service) -> Result<BTreeSet<String>, SelectorInvalid> {
        let first = ObjectKey {
            namespace: key.namespace.clone(),
            name: Str::default(),
        };
        let is_local = service.spec.external_traffic_policy == TrafficPolicy::Local;
        let slices = self.ready.range(first..).filter(|_| is_local);
        let slices = slices.take_while(|(slice, _)| slice.namespace == key.namespace);
        let slices = slices.filter(|(_, (service, _))| service == key);
        let ready: BTreeSet<&Str> = slices.flat_map(|(_, (_, nodes))| nodes).collect();
        ingress(service, self.nodes.objects(), is_local.then_some(&ready))
    }

    /// Addresses that are removed from the ingress of a Service: those of nodes, and those that were written.
    fn own(&self, key: &ObjectKey) -> BTreeSet<String> {
        let addresses = self.nodes.objects().flat_map(|node| &node.status.addresses);
        let addresses = addresses.map(|address| address.address.to_string());
        addresses
            .chain(self.written.get(key).into_iter().flatten().cloned())
            .collect()
    }
}

impl Watches<Service> for NodeIpam {
    fn store(&mut self) -> &mut Store<Service> {
        &mut self.services
    }

    fn affected(&mut self, change: &Change<Service>) -> Vec<ObjectKey> {
        let key = change.key.clone();
        let wanted = change
            .new
            .as_ref()
            .filter(|service| is_responsible(service, self.is_default));
        if let Some(service) = wanted {
            self.wanted.insert(key.clone(), service.clone());
            return vec![key];
        }
        self.written.remove(&key);
        self.wanted.remove(&key).map(|_| key).into_iter().collect()
    }
}

impl Watches<Node> for NodeIpam {
    fn store(&mut self) -> &mut Store<Node> {
        &mut self.nodes
    }

    fn affected(&mut self, change: &Change<Node>) -> Vec<ObjectKey> {
        let [old, new] = [&change.old, &change.new].map(|node| node.as_deref().and_then(usable));
        match old == new {
            true => Vec::new(),
            false => self.wanted.keys().cloned().collect(),
        }
    }
}

impl Watches<EndpointSlice> for NodeIpam {
    fn store(&mut self) -> &mut Store<EndpointSlice> {
        &mut self.slices
    }

    fn affected(&mut self, change: &Change<EndpointSlice>) -> Vec<ObjectKey> {
        let new = change.new.as_ref().and_then(|slice| {
            let service = ObjectKey {
                namespace: change.key.namespace.clone(),
                name: Str::new(slice.service_name()?),
            };
            let endpoints = slice.endpoints.iter();
            // Unknown counts as ready.
            let ready = endpoints.filter(|endpoint| endpoint.conditions.ready != Some(false));
            let nodes = ready.filter_map(|endpoint| endpoint.node_name.clone());
            Some((service, nodes.collect()))
        });
        let old = match &new {
            Some(new) => self.ready.insert(change.key.clone(), new.clone()),
            None => self.ready.remove(&change.key),
        };
        if old == new {
            return Vec::new();
        }
        let services = old.into_iter().chain(new).map(|(service, _)| service);
        services
            .filter(|service| self.wanted.contains_key(service))
            .collect()
    }
}

/// Replaces the ingress of a Service as it is now; with `own` only these of its addresses are removed.
async fn write(
    client: &dyn Client,
    key: &ObjectKey,
    ingress: &BTreeSet<String>,
    own: Option<&BTreeSet<String>>,
) -> Result<(), RequestError> {
    let kind = Service::kind();
    let read = request(client.get(&kind, &key.namespace, &key.name)).await?;
    let mut object: Value = (*read.to_value().map_err(ApiError::from)?).clone();
    let entries: Vec<Value> = match own {
        Some(own) => {
            let current = object["status"]["loadBalancer"]["ingress"].as_array();
            let is_others = |entry: &&Value| entry["ip"].as_str().is_none_or(|ip| !own.contains(ip));
            current.into_iter().flatten().filter(is_others).cloned().collect()
        }
        None => ingress.iter().map(|ip| json!({ "ip": ip })).collect(),
    };
    if !object["status"].is_object() {
        object["status"] = json!({});
    }
    object["status"]["loadBalancer"] = match entries.is_empty() {
        true => json!({}),
        false => json!({ "ingress": entries }),
    };
    let options = WriteOptions::default();
    request(client.update(&kind, &key.namespace, Subresource::Status, object, &options)).await?;
    tracing::info!(service = %key, addresses = ingress.len(), "Updated node addresses");
    Ok(())
}
