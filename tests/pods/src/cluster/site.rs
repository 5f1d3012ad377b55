// SPDX-License-Identifier: Apache-2.0

//! Nodes of a recording: which one the agent was on, and whether there was another one.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::bindings::Bindings;

/// The recorded node.
#[derive(Debug, Clone)]
pub(crate) struct Site {
    pub(crate) profile: String,
    /// Number of the node: `1` of `n1`.
    pub(crate) own: u8,
    other: Option<Peer>,
    /// How many probes of nodes succeeded.
    pub(crate) successes: usize,
    /// Whether the first node has an external address.
    pub(crate) has_external: bool,
    /// Whether metrics are recorded.
    pub(crate) has_metrics: bool,
    /// Addresses of pods in requests, which the pods of the scene must not have.
    pub(crate) asked: BTreeSet<String>,
}

/// Another node.
#[derive(Debug, Clone)]
pub(crate) struct Peer {
    pub(crate) number: u8,
    /// Addresses of its health endpoint.
    pub(crate) health: [String; 2],
    /// Whether its agent answers probes, and its health endpoint.
    pub(crate) is_up: bool,
    pub(crate) has_health: bool,
}

impl Site {
    pub(crate) fn of(recording: &Value) -> Self {
        let text = |key: &str| recording[key].as_str().unwrap_or_default();
        let profile = match text("agent_profile") {
            "" => text("name").trim_start_matches("config-"),
            profile => profile,
        };
        let all = recording.to_string();
        let second = all.contains("\"self\":\"n2\"")
            || text("name").ends_with("-n2")
            || text("description").contains("from n2")
            || recording["body"].to_string().contains("10.2.0.0/29");
        let own = if second { 2 } else { 1 };
        let has_other = profile.starts_with("A2") || second || names(&all, "172.30.40.2");
        let number = 3 - own;
        let other = has_other.then(|| Peer::of(recording, number));
        let requests = recording["requests"].as_array().into_iter().flatten();
        let mut statuses = requests.map(|step| &step["response"]["json"]);
        let status = statuses.find(|answer| answer["nodes"].is_array());
        Self {
            profile: profile.to_owned(),
            own,
            other,
            successes: status.map_or(0, successes),
            has_external: names(&all, "198.51.100.7"),
            has_metrics: recording["prometheus_series"].is_array(),
            asked: addresses(&recording["requests"].to_string()),
        }
    }

    pub(crate) fn name(&self) -> String {
        format!("n{}", self.own)
    }

    pub(crate) fn ipv4(&self) -> String {
        format!("172.30.40.{}", self.own)
    }

    pub(crate) fn ipv6(&self) -> String {
        format!("fd00:30:40::{}", self.own)
    }

    pub(crate) fn peer(&self) -> Option<&Peer> {
        self.other.as_ref()
    }
}

impl Peer {
    fn of(recording: &Value, number: u8) -> Self {
        let mut peer = Self {
            number,
            health: [format!("10.{number}.0.5"), format!("fd00:10:{number}::5")],
            is_up: true,
            has_health: true,
        };
        let Some(found) = probes(&recording["requests"], &format!("n{number}")) else {
            return peer;
        };
        let answers = |part: &Value, kind: &str| paths(part).iter().any(|path| is_success(&path[kind]));
        peer.is_up = answers(&found["host"], "http");
        peer.has_health = answers(&found["health-endpoint"], "icmp");
        let mut bindings = Bindings::of(recording);
        for ip in paths(&found["health-endpoint"])
            .iter()
            .filter_map(|path| path["ip"].as_str())
        {
            let ip = bindings.fill_text(ip);
            let family = usize::from(ip.contains(':'));
            peer.health[family] = ip;
        }
        peer
    }

    pub(crate) fn ipv4(&self) -> String {
        format!("172.30.40.{}", self.number)
    }

    pub(crate) fn ipv6(&self) -> String {
        format!("fd00:30:40::{}", self.number)
    }
}

/// The addresses of pods in a text.
fn addresses(text: &str) -> BTreeSet<String> {
    const NETWORK: &str = "10.1.0.";
    let ends = text
        .match_indices(NETWORK)
        .map(|(at, _)| &text[at + NETWORK.len()..]);
    let numbers = ends.map(|rest| rest.split(|letter: char| !letter.is_ascii_digit()).next());
    let numbers = numbers.filter_map(|number| number?.parse::<u8>().ok());
    numbers.map(|number| format!("{NETWORK}{number}")).collect()
}

/// Whether a text has an address, not as a part of a longer one.
fn names(text: &str, address: &str) -> bool {
    let mut rest = text
        .match_indices(address)
        .map(|(at, _)| &text[at + address.len()..]);
    rest.any(|rest| !rest.starts_with(|letter: char| letter.is_ascii_digit() || letter == '.'))
}

/// Successful probes in an answer of `cilium-health`.
pub(crate) fn successes(status: &Value) -> usize {
    let nodes = status["nodes"].as_array().into_iter().flatten();
    let parts = nodes.flat_map(|node| [&node["host"], &node["health-endpoint"]]);
    let probes = parts
        .flat_map(paths)
        .flat_map(|path| [&path["icmp"], &path["http"]]);
    probes.filter(|probe| is_success(probe)).count()
}

fn is_success(probe: &Value) -> bool {
    let is_error = probe["status"].as_str().is_some_and(|text| !text.is_empty());
    probe["lastProbed"].is_string() && !is_error
}

/// The paths to a host or a health endpoint.
fn paths(part: &Value) -> Vec<&Value> {
    let secondary = part["secondary-addresses"].as_array().into_iter().flatten();
    [&part["primary-address"]].into_iter().chain(secondary).collect()
}

/// The recorded probes of a node.
fn probes<'a>(value: &'a Value, node: &str) -> Option<&'a Value> {
    match value {
        Value::Object(object) if object.contains_key("host") && object["name"] == node => Some(value),
        Value::Object(object) => object.values().find_map(|value| probes(value, node)),
        Value::Array(list) => list.iter().find_map(|value| probes(value, node)),
        _ => None,
    }
}
