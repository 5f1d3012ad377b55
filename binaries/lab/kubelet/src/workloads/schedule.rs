// SPDX-License-Identifier: Apache-2.0

//! Chooses the nodes of pods: by selector, required node affinity, ports of the host and required anti-affinity between hosts.

use std::{collections::BTreeSet, sync::Arc};

use serde_json::Value;

use crate::object::{flag, list, number, text};

/// The node with the fewest pods among those that a pod may run on.
pub(super) fn node_for(pod: &Value, pods: &[Arc<Value>], nodes: &[Arc<Value>]) -> Option<String> {
    let on = |node: &Value| -> Vec<&Arc<Value>> {
        let name = text(node, "/metadata/name");
        let others = pods.iter().filter(|other| text(other, "/spec/nodeName") == name);
        others.collect()
    };
    let fits = |node: &&Arc<Value>| {
        is_selected(&pod["spec"], node)
            && !flag(node, "/spec/unschedulable")
            && !on(node).iter().any(|other| is_in_the_way(pod, other))
    };
    let node = nodes.iter().filter(fits).min_by_key(|node| on(node).len())?;
    Some(text(node, "/metadata/name").to_owned())
}

/// Whether a node has the labels that a pod's specification selects.
pub(super) fn is_selected(spec: &Value, node: &Value) -> bool {
    let mut selector = spec["nodeSelector"].as_object().into_iter().flatten();
    let labels = &node["metadata"]["labels"];
    let terms = spec
        .pointer("/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms");
    selector.all(|(key, value)| labels[key] == *value)
        && terms.and_then(Value::as_array).is_none_or(|terms| {
            let matches = |term: &Value| list(term, "/matchExpressions").iter().all(|one| has(labels, one));
            terms.iter().any(matches)
        })
}

/// Whether labels match an expression; operators that compare numbers are unsupported.
fn has(labels: &Value, expression: &Value) -> bool {
    let label = &labels[text(expression, "/key")];
    let is_listed = list(expression, "/values").contains(label);
    match text(expression, "/operator") {
        "In" => is_listed,
        "NotIn" => !is_listed,
        "Exists" => !label.is_null(),
        "DoesNotExist" => label.is_null(),
        _ => false,
    }
}

/// Whether labels match a selector by labels.
pub(super) fn matches(selector: &Value, object: &Value) -> bool {
    let labels = &object["metadata"]["labels"];
    let wanted = selector["matchLabels"].as_object();
    wanted.is_some_and(|wanted| wanted.iter().all(|(key, value)| labels[key] == *value))
}

fn is_in_the_way(pod: &Value, other: &Value) -> bool {
    let has_ended = matches!(text(other, "/status/phase"), "Succeeded" | "Failed");
    !has_ended && (repels(pod, other) || repels(other, pod) || !ports(pod).is_disjoint(&ports(other)))
}

fn repels(pod: &Value, other: &Value) -> bool {
    let pointer = "/spec/affinity/podAntiAffinity/requiredDuringSchedulingIgnoredDuringExecution";
    list(pod, pointer).iter().any(|term| {
        text(term, "/topologyKey") == "kubernetes.io/hostname"
            && pod["metadata"]["namespace"] == other["metadata"]["namespace"]
            && matches(&term["labelSelector"], other)
    })
}

fn ports(pod: &Value) -> BTreeSet<u64> {
    let containers = list(pod, "/spec/containers").iter();
    let ports = containers.flat_map(|container| list(container, "/ports"));
    ports
        .filter_map(|port| number(port, "/hostPort").filter(|port| *port > 0))
        .collect()
}
