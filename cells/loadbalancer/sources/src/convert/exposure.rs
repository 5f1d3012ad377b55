// SPDX-License-Identifier: Apache-2.0

//! Whether a service is provisioned on this node.

use skep_k8s_types::selector::Selector;
use skep_k8s_types::slim::{Labels, Service};
use skep_loadbalancer_model::types::annotation::{NODE, NODE_SELECTOR};

/// Whether the answer of [`is_exposed_on`] depends on the node, so that it must be asked again when the node's labels
/// change.
pub fn names_a_node(service: &Service) -> bool {
    let annotations = &service.metadata.annotations;
    annotations.contains_key(NODE) || annotations.contains_key(NODE_SELECTOR)
}

/// Whether the annotations of a service allow a node with these labels.
///
/// `service.cilium.io/node-selector`, if there, decides alone; one that can't be read allows every node. Else the
/// label `service.cilium.io/node` of the node must equal the annotation of that name.
pub fn is_exposed_on(service: &Service, node_labels: &Labels) -> bool {
    let annotations = &service.metadata.annotations;
    if let Some(text) = annotations.get(NODE_SELECTOR) {
        return match text.parse::<Selector>() {
            Ok(selector) => selector.matches(node_labels),
            Err(error) => {
                let name = format_args!("{}/{}", service.metadata.namespace, service.metadata.name);
                tracing::warn!(service = %name, annotation = NODE_SELECTOR, %error,
                    "Invalid node selector, provisioning service on every node");
                true
            }
        };
    }
    annotations
        .get(NODE)
        .is_none_or(|node| node_labels.get(NODE) == Some(node))
}
