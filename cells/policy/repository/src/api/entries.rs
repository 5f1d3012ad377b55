// SPDX-License-Identifier: Apache-2.0

//! Rules as the entries of Cilium's repository, which `GET /v1/policy` shows as a JSON text.

use std::{collections::HashMap, sync::Arc};

use serde::Serialize;
use serde_json::{Map, Number, Value, json};
use skep_policy_model::{
    Direction, ResourceId, Selector,
    ports::Ports,
    rule::{AuthType, PolicyKind, Rule, Traffic, Verdict},
};
use skep_policy_sources::PolicyRow;
use statedb::Obj;
use utoipa::ToSchema;

use crate::follow::resource_of;

/// A label of a rule.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub(super) struct Label {
    /// Key.
    key: String,
    /// Value; empty for none.
    value: String,
    /// Source.
    source: String,
}

pub(super) fn labels(labels: &[Box<str>]) -> Vec<Label> {
    let label = |text: &Box<str>| {
        let (source, rest) = text.split_once(':').unwrap_or(("", text));
        let (key, value) = rest.split_once('=').unwrap_or((rest, ""));
        Label {
            key: key.to_owned(),
            value: value.to_owned(),
            source: source.to_owned(),
        }
    };
    labels.iter().map(label).collect()
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Entry {
    tier: u8,
    priority: Number,
    authentication: Option<Authentication>,
    log: Log,
    subject: Value,
    #[serde(rename = "L3")]
    peers: Option<Vec<Value>>,
    #[serde(rename = "L4")]
    ports: Option<Vec<Value>>,
    labels: Vec<Label>,
    default_deny: bool,
    verdict: u8,
    ingress: bool,
    node: bool,
}

#[derive(Serialize)]
struct Authentication {
    mode: &'static str,
}

#[derive(Serialize)]
struct Log {
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<Arc<str>>,
}

/// The rules, with the ports as the objects of `rows` have them.
pub(super) fn text<'a>(rules: &[Arc<Rule>], rows: impl Iterator<Item = &'a Obj<PolicyRow>>) -> String {
    let objects: HashMap<ResourceId, &Value> = rows
        .filter_map(|row| Some((resource_of(row)?, &*row.object)))
        .collect();
    let entries: Vec<Entry> = rules
        .iter()
        .map(|rule| {
            let object = rule.origin.resource.as_ref().and_then(|id| objects.get(id));
            entry(
                rule,
                object.and_then(|object| element(object, &rule.origin.field)),
            )
        })
        .collect();
    let text = serde_json::to_string_pretty(&entries).unwrap_or_default();
    escape(&text)
}

/// As Go escapes JSON: these characters only are in strings.
pub(super) fn escape(text: &str) -> String {
    text.replace('&', "\\u0026")
        .replace('<', "\\u003c")
        .replace('>', "\\u003e")
}

fn entry(rule: &Rule, element: Option<&Value>) -> Entry {
    let peers = rule.listed.as_deref();
    let peers = peers.or_else(|| Some(&*rule.peers).filter(|peers| !peers.is_empty()));
    let authentication = rule.auth.map(|auth| Authentication {
        mode: match auth {
            AuthType::Disabled => "disabled",
            AuthType::Required => "required",
            AuthType::AlwaysFail => "test-always-fail",
        },
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

pub(super) const fn verdict(verdict: Verdict) -> u8 {
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
    let is_all = rule.traffic.iter().any(|traffic| *traffic == Traffic::ALL);
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
