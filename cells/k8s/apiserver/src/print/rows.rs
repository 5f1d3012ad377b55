// SPDX-License-Identifier: Apache-2.0

//! Columns and cells of built-in kinds, the name column left out.

use jiff::Timestamp;
use serde_json::Value;
use skep_k8s_memory::{Kind, LabelSelector, object};

use super::{age, since};

type Names = &'static [&'static str];

/// Group, resource, and what stands behind its objects' names: always, and in wide tables.
#[rustfmt::skip]
const COLUMNS: &[(&str, &str, Names, Names)] = &[
    ("", "services", &["Type", "Cluster-IP", "External-IP", "Port(s)", "Age"], &["Selector"]),
    ("", "endpoints", &["Endpoints", "Age"], &[]),
    ("discovery.k8s.io", "endpointslices", &["AddressType", "Ports", "Endpoints", "Age"], &[]),
    ("", "pods",
        &["Ready", "Status", "Restarts", "Age"],
        &["IP", "Node", "Nominated Node", "Readiness Gates"]),
    ("", "nodes",
        &["Status", "Roles", "Age", "Version"],
        &["Internal-IP", "External-IP", "OS-Image", "Kernel-Version", "Container-Runtime"]),
    ("", "namespaces", &["Status", "Age"], &[]),
    ("", "configmaps", &["Data", "Age"], &[]),
    ("", "secrets", &["Type", "Data", "Age"], &[]),
    ("", "serviceaccounts", &["Secrets", "Age"], &[]),
    ("", "events", &["Last Seen", "Type", "Reason", "Object", "Message"], &["Source", "Count"]),
    ("coordination.k8s.io", "leases", &["Holder", "Age"], &[]),
    ("apps", "deployments",
        &["Ready", "Up-to-date", "Available", "Age"],
        &["Containers", "Images", "Selector"]),
    ("apps", "replicasets", &["Desired", "Current", "Ready", "Age"], &["Containers", "Images", "Selector"]),
    ("apps", "statefulsets", &["Ready", "Age"], &["Containers", "Images"]),
    ("apps", "daemonsets",
        &["Desired", "Current", "Ready", "Up-to-date", "Available", "Node Selector", "Age"],
        &["Containers", "Images", "Selector"]),
    ("networking.k8s.io", "networkpolicies", &["Pod-Selector", "Age"], &[]),
    ("rbac.authorization.k8s.io", "rolebindings", &["Role", "Age"], &[]),
    ("rbac.authorization.k8s.io", "clusterrolebindings", &["Role", "Age"], &[]),
];

/// Columns that are always shown, and those shown on request.
pub(super) fn columns(kind: &Kind) -> (Names, Names) {
    let (group, resource) = (kind.gvr.group.as_str(), kind.gvr.resource.as_str());
    match COLUMNS
        .iter()
        .find(|(of, named, ..)| (*of, *named) == (group, resource))
    {
        Some(&(_, _, always, wide)) => (always, wide),
        None if shows_creation(kind) => (&["Created At"], &[]),
        None => (&["Age"], &[]),
    }
}

/// Kinds for which Kubernetes has no columns of their own.
fn shows_creation(kind: &Kind) -> bool {
    matches!(
        (kind.gvr.group.as_str(), kind.gvr.resource.as_str()),
        ("", "limitranges")
            | ("rbac.authorization.k8s.io", "roles" | "clusterroles")
            | ("apiextensions.k8s.io", "customresourcedefinitions")
    )
}

/// Cells for these columns.
pub(super) fn cells(kind: &Kind, o: &Value, now: Timestamp) -> Vec<Value> {
    let age = || age(o, now);
    let texts: Vec<String> = match (kind.gvr.group.as_str(), kind.gvr.resource.as_str()) {
        ("", "services") => vec![
            or(object::text(o, &["spec", "type"]), "ClusterIP"),
            or(object::text(o, &["spec", "clusterIP"]), "<none>"),
            external(o),
            service_ports(o),
            age(),
            labels(object::at(o, &["spec", "selector"])),
        ],
        ("", "endpoints") => vec![endpoints(o), age()],
        ("discovery.k8s.io", "endpointslices") => {
            vec![
                object::text(o, &["addressType"]).to_owned(),
                slice_ports(o),
                slice_addresses(o),
                age(),
            ]
        }
        ("", "pods") => pod(o, age()),
        ("", "nodes") => node(o, age()),
        ("", "namespaces") => vec![object::text(o, &["status", "phase"]).to_owned(), age()],
        ("", "configmaps") => return vec![data(o).into(), age().into()],
        ("", "secrets") => return vec![object::text(o, &["type"]).into(), data(o).into(), age().into()],
        ("", "events") => event(o, now),
        ("coordination.k8s.io", "leases") => {
            vec![object::text(o, &["spec", "holderIdentity"]).to_owned(), age()]
        }
        ("apps", resource) if columns(kind).0.len() > 1 => return workload(resource, o, age()),
        ("", "serviceaccounts") => return vec![object::items(o, &["secrets"]).len().into(), age().into()],
        ("networking.k8s.io", "networkpolicies") => {
            let selector = object::at(o, &["spec", "podSelector"]).map(LabelSelector::of_object);
            vec![or(&selector.unwrap_or_default().to_text(), "<none>"), age()]
        }
        ("rbac.authorization.k8s.io", "rolebindings" | "clusterrolebindings") => {
            let role = |key: &str| object::text(o, &["roleRef", key]);
            vec![format!("{}/{}", role("kind"), role("name")), age()]
        }
        _ if shows_creation(kind) => vec![object::text(o, &["metadata", "creationTimestamp"]).to_owned()],
        _ => vec![age()],
    };
    texts.into_iter().map(Into::into).collect()
}

fn or(text: &str, otherwise: &str) -> String {
    if text.is_empty() {
        otherwise.to_owned()
    } else {
        text.to_owned()
    }
}

fn number(o: &Value, path: &[&str]) -> i64 {
    object::at(o, path).and_then(Value::as_i64).unwrap_or(0)
}

fn labels(map: Option<&Value>) -> String {
    let mut pairs: Vec<String> = map
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
        .map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default()))
        .collect();
    pairs.sort();
    or(&pairs.join(","), "<none>")
}

fn data(o: &Value) -> i64 {
    ["data", "binaryData"]
        .iter()
        .map(|part| {
            o.get(*part)
                .and_then(Value::as_object)
                .map_or(0, serde_json::Map::len) as i64
        })
        .sum()
}

fn external(o: &Value) -> String {
    let ips = |path: &[&str], key: &str| -> Vec<String> {
        object::items(o, path)
            .iter()
            .filter_map(|v| {
                if key.is_empty() {
                    v.as_str()
                } else {
                    v.get(key).and_then(Value::as_str)
                }
            })
            .map(str::to_owned)
            .collect()
    };
    let external = ips(&["spec", "externalIPs"], "");
    match object::text(o, &["spec", "type"]) {
        "LoadBalancer" => {
            let mut all: Vec<String> = object::items(o, &["status", "loadBalancer", "ingress"])
                .iter()
                .map(|i| or(object::text(i, &["ip"]), object::text(i, &["hostname"])))
                .collect();
            all.extend(external);
            or(&all.join(","), "<pending>")
        }
        "ExternalName" => object::text(o, &["spec", "externalName"]).to_owned(),
        _ => or(&external.join(","), "<none>"),
    }
}

fn service_ports(o: &Value) -> String {
    let ports: Vec<String> = object::items(o, &["spec", "ports"])
        .iter()
        .map(|port| {
            let (from, node) = (number(port, &["port"]), number(port, &["nodePort"]));
            let protocol = object::text(port, &["protocol"]);
            if node > 0 {
                format!("{from}:{node}/{protocol}")
            } else {
                format!("{from}/{protocol}")
            }
        })
        .collect();
    or(&ports.join(","), "<none>")
}

/// At most three, then how many more.
fn some(items: Vec<String>, none: &str) -> String {
    match items.len() {
        0 => none.to_owned(),
        1..=3 => items.join(","),
        n => format!("{} + {} more...", items[..3].join(","), n - 3),
    }
}

fn endpoints(o: &Value) -> String {
    let mut all = Vec::new();
    for subset in object::items(o, &["subsets"]) {
        for port in object::items(subset, &["ports"]) {
            for address in object::items(subset, &["addresses"]) {
                let (ip, port) = (object::text(address, &["ip"]), number(port, &["port"]));
                all.push(if ip.contains(':') {
                    format!("[{ip}]:{port}")
                } else {
                    format!("{ip}:{port}")
                });
            }
        }
    }
    some(all, "<none>")
}

fn slice_ports(o: &Value) -> String {
    let ports = object::items(o, &["ports"]);
    let texts = ports
        .iter()
        .map(|p| match p.get("port").and_then(Value::as_i64) {
            Some(port) => port.to_string(),
            None => "*".to_owned(),
        })
        .collect();
    some(texts, "<unset>")
}

fn slice_addresses(o: &Value) -> String {
    let addresses = object::items(o, &["endpoints"])
        .iter()
        .flat_map(|e| object::items(e, &["addresses"]))
        .filter_map(|a| a.as_str().map(str::to_owned))
        .collect();
    some(addresses, "<unset>")
}

fn pod(o: &Value, age: String) -> Vec<String> {
    let statuses = object::items(o, &["status", "containerStatuses"]);
    let total = object::items(o, &["spec", "containers"]).len();
    let ready = statuses
        .iter()
        .filter(|s| s.get("ready").and_then(Value::as_bool) == Some(true))
        .count();
    let restarts: i64 = statuses.iter().map(|s| number(s, &["restartCount"])).sum();
    let mut status = or(
        object::text(o, &["status", "reason"]),
        object::text(o, &["status", "phase"]),
    );
    for container in statuses {
        for state in ["waiting", "terminated"] {
            let reason = object::text(container, &["state", state, "reason"]);
            if !reason.is_empty() {
                status = reason.to_owned();
            }
        }
    }
    if object::is_terminating(o) {
        status = "Terminating".to_owned();
    }
    let gates = object::items(o, &["spec", "readinessGates"]).len();
    vec![
        format!("{ready}/{total}"),
        status,
        restarts.to_string(),
        age,
        or(object::text(o, &["status", "podIP"]), "<none>"),
        or(object::text(o, &["spec", "nodeName"]), "<none>"),
        or(object::text(o, &["status", "nominatedNodeName"]), "<none>"),
        if gates == 0 {
            "<none>".to_owned()
        } else {
            format!("0/{gates}")
        },
    ]
}

fn node(o: &Value, age: String) -> Vec<String> {
    let mut states: Vec<String> = object::items(o, &["status", "conditions"])
        .iter()
        .filter(|c| object::text(c, &["type"]) == "Ready")
        .map(|c| {
            if object::text(c, &["status"]) == "True" {
                "Ready"
            } else {
                "NotReady"
            }
            .to_owned()
        })
        .collect();
    if states.is_empty() {
        states.push("Unknown".to_owned());
    }
    if object::at(o, &["spec", "unschedulable"]) == Some(&Value::Bool(true)) {
        states.push("SchedulingDisabled".to_owned());
    }
    let mut roles: Vec<&str> = object::at(o, &["metadata", "labels"])
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
        .filter_map(|(key, _)| key.strip_prefix("node-role.kubernetes.io/"))
        .collect();
    roles.sort_unstable();
    let address = |kind: &str| {
        let found = object::items(o, &["status", "addresses"])
            .iter()
            .find(|a| object::text(a, &["type"]) == kind)
            .map_or("", |a| object::text(a, &["address"]));
        or(found, "<none>")
    };
    let info = |key: &str, none: &str| or(object::text(o, &["status", "nodeInfo", key]), none);
    vec![
        states.join(","),
        or(&roles.join(","), "<none>"),
        age,
        info("kubeletVersion", ""),
        address("InternalIP"),
        address("ExternalIP"),
        info("osImage", "<unknown>"),
        info("kernelVersion", "<unknown>"),
        info("containerRuntimeVersion", "<unknown>"),
    ]
}

fn event(o: &Value, now: Timestamp) -> Vec<String> {
    let seen = ["lastTimestamp", "eventTime", "firstTimestamp"]
        .iter()
        .map(|key| object::text(o, &[key]))
        .find(|text| !text.is_empty())
        .unwrap_or_default();
    let (kind, name) = (
        object::text(o, &["involvedObject", "kind"]),
        object::text(o, &["involvedObject", "name"]),
    );
    vec![
        since(seen, now),
        object::text(o, &["type"]).to_owned(),
        object::text(o, &["reason"]).to_owned(),
        format!("{}/{name}", kind.to_lowercase()),
        object::text(o, &["message"]).trim().to_owned(),
        or(
            object::text(o, &["source", "component"]),
            object::text(o, &["reportingComponent"]),
        ),
        number(o, &["count"]).max(1).to_string(),
    ]
}

fn workload(resource: &str, o: &Value, age: String) -> Vec<Value> {
    let status = |key: &str| number(o, &["status", key]);
    let wanted = number(o, &["spec", "replicas"]);
    let containers = object::items(o, &["spec", "template", "spec", "containers"]);
    let of = |key: &str| {
        let texts: Vec<&str> = containers.iter().map(|c| object::text(c, &[key])).collect();
        Value::from(texts.join(","))
    };
    let selector = || {
        let selector = object::at(o, &["spec", "selector"]).map(LabelSelector::of_object);
        Value::from(selector.unwrap_or_default().to_text())
    };
    match resource {
        "deployments" => vec![
            format!("{}/{wanted}", status("readyReplicas")).into(),
            status("updatedReplicas").into(),
            status("availableReplicas").into(),
            age.into(),
            of("name"),
            of("image"),
            selector(),
        ],
        "replicasets" => vec![
            wanted.into(),
            status("replicas").into(),
            status("readyReplicas").into(),
            age.into(),
            of("name"),
            of("image"),
            selector(),
        ],
        "statefulsets" => vec![
            format!("{}/{wanted}", status("readyReplicas")).into(),
            age.into(),
            of("name"),
            of("image"),
        ],
        _ => vec![
            status("desiredNumberScheduled").into(),
            status("currentNumberScheduled").into(),
            status("numberReady").into(),
            status("updatedNumberScheduled").into(),
            status("numberAvailable").into(),
            labels(object::at(o, &["spec", "template", "spec", "nodeSelector"])).into(),
            age.into(),
            of("name"),
            of("image"),
            selector(),
        ],
    }
}
