// SPDX-License-Identifier: Apache-2.0

//! Rules and filters as the JSON documents of Cilium's agent API.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::Serialize;
use serde_json::{Map, Number, Value, json};

use crate::{
    filter::{FilterKey, PeerPolicy},
    l7::L7Rules,
    ports::{Ports, Protocol},
    resolve::DirectionPolicy,
    rule::{AuthType, Direction, PolicyKind, ResourceId, Rule, Traffic, Verdict},
    selector::Selector,
};

/// A label of a rule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Label {
    pub key: String,
    /// Empty for none.
    pub value: String,
    pub source: String,
}

/// Labels of texts `source:key=value`.
pub fn labels(labels: &[Box<str>]) -> Vec<Label> {
    let label = |text: &str| {
        let (source, rest) = text.split_once(':').unwrap_or(("", text));
        let (key, value) = rest.split_once('=').unwrap_or((rest, ""));
        Label {
            key: key.to_owned(),
            value: value.to_owned(),
            source: source.to_owned(),
        }
    };
    labels.iter().map(|text| label(text)).collect()
}

/// A rule.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct Entry {
    tier: u8,
    priority: Number,
    authentication: Option<Authentication>,
    log: Log,
    subject: Value,
    #[serde(rename = "L3")]
    peers: Option<Vec<Value>>,
    #[serde(rename = "L4")]
    ports: Option<Vec<Value>>,
    pub labels: Vec<Label>,
    default_deny: bool,
    verdict: u8,
    ingress: bool,
    node: bool,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
struct Authentication {
    mode: &'static str,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
struct Log {
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<Arc<str>>,
}

/// Entries as an indented text.
pub fn text(entries: &[Entry]) -> String {
    escape(&serde_json::to_string_pretty(entries).unwrap_or_default())
}

/// As Go escapes JSON: these characters only are in strings.
fn escape(text: &str) -> String {
    text.replace('&', "\\u0026")
        .replace('<', "\\u003c")
        .replace('>', "\\u003e")
}

/// A rule, with the ports as its object has them.
pub fn entry(rule: &Rule, object: Option<&Value>) -> Entry {
    let element = object.and_then(|object| element(object, &rule.origin.field));
    let peers = rule.listed.as_deref();
    let peers = peers.or_else(|| Some(&*rule.peers).filter(|peers| !peers.is_empty()));
    let authentication = rule.auth.map(|auth| Authentication {
        mode: auth_mode(auth),
    });
    Entry {
        tier: rule.tier.0,
        priority: number(rule.priority),
        authentication,
        log: Log {
            value: rule.origin.log.clone(),
        },
        subject: selector(&rule.subject.selector),
        peers: peers.map(|peers| peers.iter().map(selector).collect()),
        ports: ports(rule, element),
        labels: labels(&rule.origin.labels),
        default_deny: rule.default_deny,
        verdict: verdict(rule.verdict),
        ingress: rule.direction == Direction::Ingress,
        node: rule.subject.is_node,
    }
}

const fn auth_mode(auth: AuthType) -> &'static str {
    match auth {
        AuthType::Required => "required",
        other => other.name(),
    }
}

const fn verdict(verdict: Verdict) -> u8 {
    match verdict {
        Verdict::Allow => 0,
        Verdict::Deny => 1,
        Verdict::Pass => 2,
    }
}

/// Without a fraction for integers.
fn number(priority: f64) -> Number {
    #[expect(clippy::cast_possible_truncation, reason = "compared with the number")]
    let integer = priority as i64;
    #[expect(clippy::cast_precision_loss, reason = "compared with the number")]
    let is_integer = (integer as f64).total_cmp(&priority).is_eq();
    match is_integer {
        true => integer.into(),
        false => Number::from_f64(priority).unwrap_or_else(|| integer.into()),
    }
}

fn selector(selector: &Selector) -> Value {
    match selector.labels() {
        Some(labels) => json!(labels),
        None => selector.as_str().into(),
    }
}

/// Value of a field such as `specs[0].ingress[1]`.
fn element<'a>(object: &'a Value, field: &str) -> Option<&'a Value> {
    field
        .split('.')
        .try_fold(object, |value, part| match part.split_once('[') {
            None => value.get(part),
            Some((name, index)) => {
                let index: usize = index.strip_suffix(']')?.parse().ok()?;
                value.get(name)?.get(index)
            }
        })
}

/// `toPorts` of Cilium's objects as they are, other ports in that form.
fn ports(rule: &Rule, element: Option<&Value>) -> Option<Vec<Value>> {
    let kind = rule
        .origin
        .resource
        .as_ref()
        .map(ResourceId::as_str)
        .unwrap_or_default();
    let is_cilium = [
        PolicyKind::CiliumNetworkPolicy,
        PolicyKind::CiliumClusterwideNetworkPolicy,
        PolicyKind::File,
    ]
    .iter()
    .any(|one| kind.starts_with(one.prefix()) && kind.as_bytes().get(one.prefix().len()) == Some(&b'/'));
    let listed = element.and_then(|element| element.get("toPorts")?.as_array());
    if let Some(listed) = listed.filter(|listed| is_cilium && !listed.is_empty()) {
        return Some(listed.iter().map(port_rule).collect());
    }
    let is_all = rule.traffic.contains(&Traffic::ALL);
    if is_all || rule.traffic.is_empty() {
        return is_cilium.then(Vec::new);
    }
    Some(rule.traffic.iter().map(traffic_rule).collect())
}

/// An element of `toPorts`, with protocols as the agent reads them.
fn port_rule(rule: &Value) -> Value {
    let mut rule = rule.clone();
    if let Some(ports) = rule.get_mut("ports").and_then(Value::as_array_mut) {
        for port in ports.iter_mut().filter_map(Value::as_object_mut) {
            let protocol = port.get("protocol").and_then(Value::as_str).unwrap_or_default();
            let protocol = match protocol.is_empty() {
                true => "ANY".to_owned(),
                false => protocol.to_ascii_uppercase(),
            };
            port.insert("protocol".to_owned(), protocol.into());
        }
    }
    rule
}

fn traffic_rule(traffic: &Traffic) -> Value {
    let (port, end) = match &traffic.ports {
        Ports::Number { port, end } | Ports::Exact { port, end } => (port.to_string(), *end),
        Ports::Name { name, end } => (name.clone(), *end),
    };
    let mut spec = Map::new();
    spec.insert("port".to_owned(), port.into());
    if end > 0 {
        spec.insert("endPort".to_owned(), end.into());
    }
    spec.insert("protocol".to_owned(), traffic.protocol.to_string().into());
    json!({ "ports": [spec] })
}

/// What rules say about some ports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FilterDocument {
    /// JSON text.
    pub rule: String,
    /// Labels of its rules.
    pub derived_from: BTreeSet<Arc<[Box<str>]>>,
    /// The same by selector.
    pub by_selector: BTreeMap<String, BTreeSet<Arc<[Box<str>]>>>,
}

/// The filters of a direction; none of one that is open.
pub fn filters(policy: &DirectionPolicy) -> Vec<FilterDocument> {
    let filters = policy.filters.iter().filter(|_| policy.is_enforced);
    filters
        .map(|(key, filter)| {
            let by_selector: BTreeMap<String, BTreeSet<Arc<[Box<str>]>>> = filter
                .iter()
                .map(|(selector, said)| {
                    let labels = said.origins.iter().map(|origin| origin.labels.clone());
                    (selector.to_string(), labels.collect())
                })
                .collect();
            let peers = filter
                .iter()
                .map(|(selector, said)| json!({ selector.as_str(): peer(said) }));
            FilterDocument {
                rule: filter_text(key, peers.collect()),
                derived_from: by_selector.values().flatten().cloned().collect(),
                by_selector,
            }
        })
        .collect()
}

fn filter_text(key: &FilterKey, peers: Vec<Value>) -> String {
    #[derive(Serialize)]
    #[serde(rename_all = "kebab-case")]
    struct Form<'a> {
        tier: u8,
        port: u16,
        #[serde(rename = "endPort", skip_serializing_if = "Option::is_none")]
        end_port: Option<u16>,
        protocol: String,
        #[serde(skip_serializing_if = "str::is_empty")]
        port_name: &'a str,
        l7_rules: Vec<Value>,
    }
    let (port, port_name, end) = match &key.ports {
        Ports::Number { port, end } | Ports::Exact { port, end } => (*port, "", *end),
        Ports::Name { name, end } => (0, name.as_str(), *end),
    };
    let form = Form {
        tier: key.tier.0,
        port,
        end_port: Some(end).filter(|end| *end > 0),
        protocol: match key.protocol {
            Protocol::ANY => "ANY".to_owned(),
            other => other.to_string(),
        },
        port_name,
        l7_rules: peers,
    };
    escape(&serde_json::to_string(&form).unwrap_or_default())
}

/// What is said about a peer; null for a plain allow of the first level.
fn peer(said: &PeerPolicy) -> Value {
    let mut document = Map::new();
    let mut add = |name: &str, value: Value| _ = document.insert(name.to_owned(), value);
    if said.level > 0 {
        add("priority", said.level.into());
    }
    if said.verdict != Verdict::Allow {
        add("verdict", verdict(said.verdict).into());
    }
    if said.listener_priority > 0 {
        add("listenerPriority", said.listener_priority.into());
    }
    if let Some(listener) = &said.listener {
        add("listener", (**listener).into());
    }
    for (name, secret) in [
        ("terminatingTLS", &said.terminating_tls),
        ("originatingTLS", &said.originating_tls),
    ] {
        if let Some(secret) = secret {
            let mut secret = json!({ "secret": secret.secret });
            secret["values"] = "[redacted]".into();
            add(name, secret);
        }
    }
    if !said.server_names.is_empty() {
        add("serverNames", json!(said.server_names));
    }
    match &said.rules {
        L7Rules::None => {}
        L7Rules::Http(rules) => add("http", json!(rules)),
        L7Rules::Dns(rules) => {
            let pattern = |name: &str, text: &str| (name.to_owned(), Value::from(text));
            let rules = rules.iter().map(|rule| match rule.match_name.is_empty() {
                true => Value::Object(Map::from_iter([pattern("matchPattern", &rule.match_pattern)])),
                false => Value::Object(Map::from_iter([pattern("matchName", &rule.match_name)])),
            });
            add("dns", rules.collect());
        }
    }
    if let Some(auth) = said.auth {
        add("auth", json!({ "mode": auth_mode(auth) }));
    }
    match document.is_empty() {
        true => Value::Null,
        false => document.into(),
    }
}
