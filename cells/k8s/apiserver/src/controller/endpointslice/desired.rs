// SPDX-License-Identifier: Apache-2.0

//! Endpoints that a service should have.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use serde_json::{Map, Value, json};
use skep_k8s_memory::object;

/// Endpoints of one address family that share their ports.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) family: String,
    pub(super) ports: Vec<Value>,
    pub(super) endpoints: Vec<Value>,
}

/// The families of a service; old services without any have the one of their address.
fn families(service: &Value) -> Vec<String> {
    let families: Vec<String> = object::items(service, &["spec", "ipFamilies"])
        .iter()
        .filter_map(|f| f.as_str().map(str::to_owned))
        .collect();
    if !families.is_empty() {
        return families;
    }
    let is_six = object::text(service, &["spec", "clusterIP"]).contains(':');
    vec![if is_six { "IPv6" } else { "IPv4" }.to_owned()]
}

fn has_ended(pod: &Value) -> bool {
    matches!(object::text(pod, &["status", "phase"]), "Failed" | "Succeeded")
}

fn is_ready(pod: &Value) -> bool {
    object::items(pod, &["status", "conditions"])
        .iter()
        .any(|c| object::text(c, &["type"]) == "Ready" && object::text(c, &["status"]) == "True")
}

fn address(pod: &Value, family: &str) -> Option<String> {
    let mut addresses: Vec<&str> = object::items(pod, &["status", "podIPs"])
        .iter()
        .map(|ip| object::text(ip, &["ip"]))
        .collect();
    if addresses.is_empty() {
        addresses.push(object::text(pod, &["status", "podIP"]));
    }
    let fits = |text: &&&str| {
        text.parse::<IpAddr>()
            .is_ok_and(|ip| ip.is_ipv4() == (family == "IPv4"))
    };
    addresses.iter().find(fits).map(|a| (*a).to_owned())
}

/// The number behind a target port; names are looked up in the containers of the pod.
fn target(pod: &Value, port: &Value) -> Option<i64> {
    match port.get("targetPort") {
        Some(Value::String(name)) if name.parse::<u16>().is_err() => {
            let protocol = protocol(port);
            // Init containers that keep running serve ports, too.
            let sidecars = object::items(pod, &["spec", "initContainers"])
                .iter()
                .filter(|c| object::text(c, &["restartPolicy"]) == "Always");
            object::items(pod, &["spec", "containers"])
                .iter()
                .chain(sidecars)
                .flat_map(|container| object::items(container, &["ports"]))
                .find(|p| object::text(p, &["name"]) == name && self::protocol(p) == protocol)
                .and_then(|p| p.get("containerPort").and_then(Value::as_i64))
        }
        Some(Value::String(number)) => number.parse().ok(),
        Some(number) if number.as_i64().is_some_and(|n| n != 0) => number.as_i64(),
        _ => port.get("port").and_then(Value::as_i64),
    }
}

fn protocol(port: &Value) -> &str {
    match object::text(port, &["protocol"]) {
        "" => "TCP",
        other => other,
    }
}

fn ports(service: &Value, pod: &Value) -> Vec<Value> {
    let mut ports = Vec::new();
    for port in object::items(service, &["spec", "ports"]) {
        let Some(number) = target(pod, port) else { continue };
        let mut made = Map::new();
        made.insert("name".to_owned(), object::text(port, &["name"]).into());
        made.insert("protocol".to_owned(), protocol(port).into());
        made.insert("port".to_owned(), number.into());
        let application = object::text(port, &["appProtocol"]);
        if !application.is_empty() {
            made.insert("appProtocol".to_owned(), application.into());
        }
        ports.push(Value::Object(made));
    }
    ports
}

fn endpoint(service: &Value, pod: &Value, address: String, zones: &HashMap<String, String>) -> Value {
    let serving = is_ready(pod);
    let terminating = object::is_terminating(pod);
    let publishes = object::at(service, &["spec", "publishNotReadyAddresses"]) == Some(&Value::Bool(true));
    let mut endpoint = json!({
        "addresses": [address],
        "conditions": {
            "ready": publishes || (serving && !terminating),
            "serving": serving,
            "terminating": terminating,
        },
        "targetRef": {
            "kind": "Pod",
            "namespace": object::namespace(pod),
            "name": object::name(pod),
            "uid": object::uid(pod),
        },
    });
    let node = object::text(pod, &["spec", "nodeName"]);
    if !node.is_empty() {
        endpoint["nodeName"] = node.into();
    }
    if let Some(zone) = zones.get(node).filter(|z| !z.is_empty()) {
        endpoint["zone"] = zone.as_str().into();
        let near = object::text(service, &["spec", "trafficDistribution"]);
        if matches!(near, "PreferClose" | "PreferSameZone") {
            endpoint["hints"] = json!({ "forZones": [{ "name": zone }] });
        }
    }
    let hostname = object::text(pod, &["spec", "hostname"]);
    if !hostname.is_empty() && object::text(pod, &["spec", "subdomain"]) == object::name(service) {
        endpoint["hostname"] = hostname.into();
    }
    endpoint
}

/// What the service should have: one group for each family and set of ports, at least one for each family.
pub(super) fn groups<'a>(
    service: &Value,
    pods: impl Iterator<Item = &'a Arc<Value>>,
    zones: &HashMap<String, String>,
) -> Vec<Group> {
    let families = families(service);
    let mut groups: BTreeMap<(usize, String), Group> = BTreeMap::new();
    for pod in pods.filter(|pod| !has_ended(pod)) {
        let ports = ports(service, pod);
        for (index, family) in families.iter().enumerate() {
            let Some(address) = address(pod, family) else {
                continue;
            };
            let key = (index, Value::from(ports.clone()).to_string());
            let group = groups.entry(key).or_insert_with(|| Group {
                family: family.clone(),
                ports: ports.clone(),
                endpoints: Vec::new(),
            });
            group.endpoints.push(endpoint(service, pod, address, zones));
        }
    }
    let mut groups: Vec<Group> = groups.into_values().collect();
    for family in families {
        if !groups.iter().any(|g| g.family == family) {
            groups.push(Group {
                family,
                ports: Vec::new(),
                endpoints: Vec::new(),
            });
        }
    }
    groups
}
