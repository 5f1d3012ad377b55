// SPDX-License-Identifier: Apache-2.0

//! Which addresses of nodes a Service gets.
//!
//! The external addresses of all nodes that its annotation selects, or their internal ones if none has an external address.
//! Nodes that are being deleted or are excluded from load balancers do not count; with the traffic policy `Local` only
//! nodes with ready endpoints do.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use skep_k8s_types::selector::{Selector, SelectorError};
use skep_k8s_types::slim::{IpFamily, Labels, Node, NodeAddress, NodeAddressType, Service, ServiceType, Str};

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
pub(crate) struct SelectorInvalid(#[source] SelectorError);

/// Whether a Service gets addresses of nodes. `is_default` is for those without a class.
pub(crate) fn is_responsible(service: &Service, is_default: bool) -> bool {
    service.spec.kind == ServiceType::LoadBalancer
        && service.metadata.deletion_timestamp.is_none()
        && match service.spec.load_balancer_class.as_deref() {
            None | Some("") => is_default,
            Some(class) => class == CLASS,
        }
}

/// Whether the class of a Service names this controller, so that all of its ingress is ours.
pub(crate) fn has_class(service: &Service) -> bool {
    service.spec.load_balancer_class.as_deref() == Some(CLASS)
}

/// The labels and addresses of a node, unless it is excluded.
pub(crate) fn usable(node: &Node) -> Option<(&Labels, &[NodeAddress])> {
    let mut taints = node.spec.taints.iter();
    let is_excluded = node.metadata.deletion_timestamp.is_some()
        || node.metadata.labels.get(EXCLUDED).is_some()
        || taints.any(|taint| taint.key == TO_BE_DELETED);
    (!is_excluded).then_some((&node.metadata.labels, &*node.status.addresses))
}

/// Addresses for a Service, sorted as texts. `ready` are the nodes with ready endpoints, if only these count.
pub(crate) fn ingress<'a>(
    service: &Service,
    nodes: impl Iterator<Item = &'a Arc<Node>>,
    ready: Option<&BTreeSet<&Str>>,
) -> Result<BTreeSet<String>, SelectorInvalid> {
    let selector: Selector = match service.metadata.annotations.get(MATCH) {
        Some(text) => text.parse().map_err(SelectorInvalid)?,
        None => Selector::default(),
    };
    let nodes = nodes.filter(|node| ready.is_none_or(|ready| ready.contains(&node.metadata.name)));
    let nodes: Vec<&[NodeAddress]> = nodes
        .filter_map(|node| usable(node))
        .filter(|(labels, _)| selector.matches(labels))
        .map(|(_, addresses)| addresses)
        .collect();
    let has = |address: &IpAddr| {
        let family = match address {
            IpAddr::V4(_) => IpFamily::V4,
            IpAddr::V6(_) => IpFamily::V6,
        };
        service.spec.ip_families.contains(&family)
    };
    let of = |kind: &NodeAddressType| -> BTreeSet<String> {
        let addresses = nodes.iter().copied().flatten();
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
