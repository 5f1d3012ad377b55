// SPDX-License-Identifier: Apache-2.0

//! NetworkPolicy to rules: each peer is a rule of its own.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;
use skep_identity::{LabelSource, Labels};
use skep_k8s_types::slim::LabelSelector as ObjectSelector;

use super::{
    Source,
    cilium::{Metadata, Text, text},
    error::{Fault, Faulty, ObjectError, at},
    peers::network,
    rules::{NAMESPACE_LABELS, in_cluster, k8s_key},
    validate,
};
use crate::{
    ports::{Ports, Protocol},
    rule::{Direction, Rule, RuleOrigin, RuleSet, Subject, Tier, Traffic, Verdict},
    selector::{LabelSelector, Selector, SelectorKey},
};

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Policy {
    metadata: Metadata,
    spec: Spec,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Spec {
    pod_selector: ObjectSelector,
    policy_types: Option<Vec<String>>,
    ingress: Option<Vec<IngressRule>>,
    egress: Option<Vec<EgressRule>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct IngressRule {
    from: Option<Vec<Option<Peer>>>,
    ports: Option<Vec<Port>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct EgressRule {
    to: Option<Vec<Option<Peer>>>,
    ports: Option<Vec<Port>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Peer {
    pod_selector: Option<ObjectSelector>,
    namespace_selector: Option<ObjectSelector>,
    ip_block: Option<IpBlock>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct IpBlock {
    #[serde(deserialize_with = "text")]
    cidr: String,
    except: Option<Vec<Text>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Port {
    port: Option<Number>,
    end_port: Option<i32>,
    #[serde(deserialize_with = "text")]
    protocol: String,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Number {
    Number(i64),
    Name(String),
}

type RuleParts = (Option<Vec<Option<Peer>>>, Option<Vec<Port>>);

pub(super) fn convert(source: &Source<'_>, object: &Value) -> Result<RuleSet, ObjectError> {
    let policy: Policy = source.decode(object)?;
    convert_policy(source, policy).map_err(|fault| source.invalid(fault))
}

fn convert_policy(source: &Source<'_>, policy: Policy) -> Faulty<RuleSet> {
    let spec = policy.spec;
    validate::label_selector("spec.podSelector", &spec.pod_selector)?;
    let subject = Subject {
        selector: pods(&spec.pod_selector)
            .with(k8s_key(Labels::NAMESPACE), source.namespace)
            .build(),
        is_node: false,
    };
    let annotations = policy.metadata.annotations.unwrap_or_default();
    let name = ["policy.cilium.io/name", "io.cilium.name"]
        .iter()
        .find_map(|key| annotations.get(*key))
        .map_or(source.name, String::as_str);
    let labels = source.labels(name, &policy.metadata.uid, []);
    let mut set = RuleSet::default();
    let add = |set: &mut RuleSet, field: &str, direction, peers, traffic| {
        set.rules.push(Arc::new(Rule {
            tier: Tier::NORMAL,
            priority: 0.0,
            subject: subject.clone(),
            direction,
            peers,
            listed: None,
            traffic,
            verdict: Verdict::Allow,
            default_deny: true,
            auth: None,
            origin: Arc::new(RuleOrigin {
                resource: Some(source.resource()),
                index: set.rules.len(),
                field: field.into(),
                labels: labels.clone(),
                log: None,
            }),
        }));
    };
    let ingress: Vec<RuleParts> = spec
        .ingress
        .into_iter()
        .flatten()
        .map(|rule| (rule.from, rule.ports))
        .collect();
    let egress: Vec<RuleParts> = spec
        .egress
        .into_iter()
        .flatten()
        .map(|rule| (rule.to, rule.ports))
        .collect();
    let types = spec.policy_types.unwrap_or_default();
    let has_type = |name: &str| types.iter().any(|one| one == name);
    if ingress.is_empty() && (has_type("Ingress") || !has_type("Egress")) {
        add(
            &mut set,
            "spec.policyTypes",
            Direction::Ingress,
            Vec::new(),
            Vec::new(),
        );
    }
    if egress.is_empty() && has_type("Egress") {
        add(
            &mut set,
            "spec.policyTypes",
            Direction::Egress,
            Vec::new(),
            Vec::new(),
        );
    }
    let lists = [
        ("spec.ingress", "from", Direction::Ingress, ingress),
        ("spec.egress", "to", Direction::Egress, egress),
    ];
    for (list, peers_name, direction, rules) in lists {
        for (index, (peers, ports)) in rules.into_iter().enumerate() {
            let field = at(list, index);
            let traffic = traffic(&field, ports.as_deref().unwrap_or_default())?;
            let peers = peers.unwrap_or_default();
            if peers.is_empty() {
                add(
                    &mut set,
                    &field,
                    direction,
                    vec![Selector::wildcard()],
                    traffic.clone(),
                );
            }
            for (index, peer) in peers.into_iter().enumerate() {
                let field = at(&format!("{field}.{peers_name}"), index);
                let selector = match peer {
                    Some(peer) => Some(select(source, &field, &peer, &mut set)?),
                    None => None,
                };
                add(
                    &mut set,
                    &field,
                    direction,
                    selector.into_iter().collect(),
                    traffic.clone(),
                );
            }
        }
    }
    Ok(set)
}

fn pods(selector: &ObjectSelector) -> LabelSelector {
    LabelSelector::of(selector, |key| SelectorKey::parse(key, &LabelSource::K8s))
}

/// Pods of the namespaces that a selector matches: by the labels that their identities have of them.
pub(super) fn namespaces(selector: &ObjectSelector) -> LabelSelector {
    let is_empty = selector.match_labels.is_empty() && selector.match_expressions.is_empty();
    match is_empty {
        true => LabelSelector::default().exists(k8s_key(Labels::NAMESPACE)),
        false => LabelSelector::of(selector, |key| k8s_key(&format!("{NAMESPACE_LABELS}.{key}"))),
    }
}

/// Pods of some namespaces with some labels.
pub(super) fn pods_of(namespaces: LabelSelector, selector: &ObjectSelector) -> LabelSelector {
    namespaces.and(pods(selector))
}

fn select(source: &Source<'_>, field: &str, peer: &Peer, set: &mut RuleSet) -> Faulty<Selector> {
    if let Some(block) = &peer.ip_block {
        let net = network(&block.cidr).map_err(|fault| (format!("{field}.ipBlock.cidr"), fault))?;
        let mut except = Vec::new();
        for (index, text) in block.except.iter().flatten().enumerate() {
            let net =
                network(text).map_err(|fault| (at(&format!("{field}.ipBlock.except"), index), fault))?;
            except.push(net);
        }
        set.networks.insert(net);
        set.networks.extend(&except);
        return Ok(Selector::cidr(&block.cidr, net, &except, source.settings()));
    }
    for (name, selector) in [
        ("podSelector", &peer.pod_selector),
        ("namespaceSelector", &peer.namespace_selector),
    ] {
        if let Some(selector) = selector {
            validate::label_selector(&format!("{field}.{name}"), selector)?;
        }
    }
    let no_pods = ObjectSelector::default();
    let pod_selector = peer.pod_selector.as_ref().unwrap_or(&no_pods);
    let labels = match &peer.namespace_selector {
        Some(selector) => pods_of(namespaces(selector), pod_selector),
        None => pods(pod_selector).with(k8s_key(Labels::NAMESPACE), source.namespace),
    };
    Ok(in_cluster(source, labels).build())
}

fn traffic(field: &str, ports: &[Port]) -> Faulty<Vec<Traffic>> {
    if ports.is_empty() {
        return Ok(vec![Traffic::ALL]);
    }
    let mut traffic = Vec::new();
    for (index, port) in ports.iter().enumerate() {
        let name = if port.protocol.is_empty() {
            "TCP"
        } else {
            &port.protocol
        };
        let protocol = match Protocol::from_name(name) {
            Some(protocol) if protocol != Protocol::ICMP && protocol != Protocol::ICMPV6 => protocol,
            _ => {
                let field = format!("{}.protocol", at(&format!("{field}.ports"), index));
                return Err((field, Fault::Protocol(port.protocol.clone())));
            }
        };
        let clamped = |number: i64| u16::try_from(number.clamp(0, i64::from(u16::MAX))).unwrap_or_default();
        let end = clamped(port.end_port.unwrap_or_default().into());
        let ports = match &port.port {
            None => Ports::ALL,
            Some(Number::Number(number)) => Ports::Number {
                port: clamped(*number),
                end,
            },
            Some(Number::Name(name)) => match name.parse::<i64>() {
                Ok(number) => Ports::Number {
                    port: clamped(number),
                    end,
                },
                Err(_) => Ports::Name {
                    name: name.clone(),
                    end,
                },
            },
        };
        traffic.push(Traffic {
            ports,
            protocol,
            demands: None,
        });
    }
    Ok(traffic)
}
