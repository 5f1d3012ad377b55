// SPDX-License-Identifier: Apache-2.0

//! Which addresses of nodes a Service gets.
//!
//! The external addresses of all nodes that its annotation selects, or their internal ones if none has an external address.
//! Nodes that are being deleted or are excluded from load balancers do not count; with the traffic policy `Local` only
//! nodes with ready endpoints do.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use skep_k8s_types::ObjectKey;
use skep_k8s_types::selector::{Selector, SelectorError};
use skep_k8s_types::slim::{
    EndpointSlice, IpFamily, Node, NodeAddressType, Service, ServiceType, Str, TrafficPolicy,
};

/// Class of load balancers that have addresses of nodes.
const CLASS: &str = "io.cilium/node";
/// Annotation of a Service: which nodes, as a selector of labels.
const MATCH: &str = "io.cilium.nodeipam/match-node-labels";
/// Nodes with this label get no traffic of load balancers.
const EXCLUDED: &str = "node.kubernetes.io/exclude-from-external-load-balancers";
/// Nodes with this taint are about to be removed.
const TO_BE_DELETED: &str = "ToBeDeletedByClusterAutoscaler";

/// The annotation of a Service is no selector: correct it. Until then its ingress stays.
#[derive(Debug, thiserror::Error)]
#[error("annotation `{MATCH}` is not a selector of labels")]
pub struct SelectorInvalid(#[source] SelectorError);

/// Whether a Service gets addresses of nodes. `is_default` is for those without a class.
#[must_use]
pub fn is_responsible(service: &Service, is_default: bool) -> bool {
    service.spec.kind == ServiceType::LoadBalancer
        && match service.spec.load_balancer_class.as_deref() {
            None | Some("") => is_default,
            Some(class) => class == CLASS,
        }
}

/// Whether the class of a Service names this controller, so that all of its ingress is ours.
pub(crate) fn has_class(service: &Service) -> bool {
    service.spec.load_balancer_class.as_deref() == Some(CLASS)
}

#[derive(Debug, Default)]
pub struct World {
    nodes: BTreeMap<Str, Arc<Node>>,
    services: BTreeMap<ObjectKey, Arc<Service>>,
    /// Of each slice its Service, and the nodes with ready endpoints.
    slices: BTreeMap<ObjectKey, (ObjectKey, BTreeSet<Str>)>,
}

fn is_excluded(node: &Node) -> bool {
    let taints = node.spec.taints.iter();
    node.metadata.deletion_timestamp.is_some()
        || node.metadata.labels.get(EXCLUDED).is_some()
        || taints.into_iter().any(|taint| taint.key == TO_BE_DELETED)
}

impl World {
    /// Creates or changes a node. Returns whether that matters to Services.
    pub fn upsert_node(&mut self, node: Arc<Node>) -> bool {
        let name = node.metadata.name.clone();
        let relevant = |node: &Node| {
            (!is_excluded(node)).then(|| (node.metadata.labels.clone(), node.status.addresses.clone()))
        };
        let old = self.nodes.get(&name).and_then(|old| relevant(old));
        let is_changed = old != relevant(&node);
        self.nodes.insert(name, node);
        is_changed
    }

    pub fn remove_node(&mut self, name: &str) {
        self.nodes.remove(name);
    }

    /// Whether a node has an address.
    pub(crate) fn is_of_node(&self, address: &str) -> bool {
        let nodes = self.nodes.values();
        let mut addresses = nodes.flat_map(|node| &node.status.addresses);
        addresses.any(|known| known.address == address)
    }

    pub fn nodes(&self) -> impl Iterator<Item = &Str> {
        self.nodes.keys()
    }

    pub fn upsert_service(&mut self, service: Arc<Service>) {
        self.services.insert(ObjectKey::of(&*service), service);
    }

    pub fn remove_service(&mut self, service: &ObjectKey) {
        self.services.remove(service);
    }

    pub fn services(&self) -> impl Iterator<Item = &ObjectKey> {
        self.services.keys()
    }

    #[must_use]
    pub fn service(&self, service: &ObjectKey) -> Option<&Arc<Service>> {
        self.services.get(service)
    }

    /// Creates or changes a slice. Returns the Services that it matters to: its own, and the one that it belonged to.
    pub fn upsert_slice(&mut self, slice: &EndpointSlice) -> Vec<ObjectKey> {
        let key = ObjectKey::of(slice);
        let new = slice.service_name().map(|name| {
            let service = ObjectKey {
                namespace: key.namespace.clone(),
                name: Str::new(name),
            };
            // Unknown counts as ready.
            let ready = slice
                .endpoints
                .iter()
                .filter(|endpoint| endpoint.conditions.ready != Some(false));
            (
                service,
                ready.filter_map(|endpoint| endpoint.node_name.clone()).collect(),
            )
        });
        let old = self.slices.remove(&key);
        if old == new {
            self.slices.extend(new.map(|new| (key, new)));
            return Vec::new();
        }
        let services = old
            .iter()
            .chain(&new)
            .map(|(service, _)| service.clone())
            .collect();
        self.slices.extend(new.map(|new| (key, new)));
        services
    }

    /// Removes a slice. Returns its Service.
    pub fn remove_slice(&mut self, slice: &ObjectKey) -> Option<ObjectKey> {
        let (service, _) = self.slices.remove(slice)?;
        Some(service)
    }

    pub fn slices(&self) -> impl Iterator<Item = &ObjectKey> {
        self.slices.keys()
    }

    /// Addresses for a Service, sorted as texts.
    ///
    /// # Errors
    /// [`SelectorInvalid`] if its annotation is not valid.
    pub fn ingress(&self, service: &Service) -> Result<BTreeSet<String>, SelectorInvalid> {
        let selector: Selector = match service.metadata.annotations.get(MATCH) {
            Some(text) => text.parse().map_err(SelectorInvalid)?,
            None => Selector::default(),
        };
        let is_local = service.spec.external_traffic_policy == TrafficPolicy::Local;
        let key = ObjectKey::of(service);
        let slices = self.slices.values().filter(|(of, _)| is_local && *of == key);
        let ready: BTreeSet<&Str> = slices.flat_map(|(_, nodes)| nodes).collect();
        let nodes: Vec<&Node> = self
            .nodes
            .iter()
            .filter(|(name, _)| !is_local || ready.contains(name))
            .map(|(_, node)| &**node)
            .filter(|node| !is_excluded(node) && selector.matches(&node.metadata.labels))
            .collect();
        let has = |address: &IpAddr| {
            let family = if address.is_ipv4() {
                IpFamily::V4
            } else {
                IpFamily::V6
            };
            service.spec.ip_families.contains(&family)
        };
        let of = |kind: &NodeAddressType| -> BTreeSet<String> {
            let addresses = nodes.iter().flat_map(|node| &node.status.addresses);
            let addresses = addresses.filter(|address| address.kind == *kind);
            let addresses = addresses.filter_map(|address| address.address.parse().ok());
            addresses.filter(has).map(|address| address.to_string()).collect()
        };
        let external = of(&NodeAddressType::ExternalIp);
        Ok(match external.is_empty() {
            true => of(&NodeAddressType::InternalIp),
            false => external,
        })
    }
}
