// SPDX-License-Identifier: Apache-2.0

//! ClusterNetworkPolicy (`policy.networking.k8s.io/v1alpha2`) to rules of the tiers before and after the usual one.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;
use skep_identity::LabelSource;
use skep_k8s_types::slim::LabelSelector as ObjectSelector;

use super::{
    Source,
    cilium::{Metadata, Text, text},
    error::{Fault, Faulty, ObjectError, at},
    kubernetes::{namespaces, pods_of},
    peers::network,
    rules::{any_key, in_cluster},
    validate,
};
use crate::{
    fqdn::FqdnSelector,
    l7::{L7Rules, PortDemands},
    ports::{Ports, Protocol},
    rule::{Direction, Rule, RuleOrigin, RuleSet, Subject, Tier, Traffic, Verdict},
    selector::{LabelSelector, Selector, SelectorKey},
};

/// Rules of a direction.
const MAX_RULES: usize = 25;

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Policy {
    metadata: Metadata,
    spec: Spec,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Spec {
    #[serde(deserialize_with = "text")]
    tier: String,
    priority: i32,
    subject: Peer,
    ingress: Option<Vec<PolicyRule>>,
    egress: Option<Vec<PolicyRule>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct PolicyRule {
    #[serde(deserialize_with = "text")]
    action: String,
    from: Option<Vec<Peer>>,
    to: Option<Vec<Peer>>,
    protocols: Option<Vec<PolicyProtocol>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Peer {
    namespaces: Option<ObjectSelector>,
    pods: Option<Pods>,
    nodes: Option<ObjectSelector>,
    networks: Option<Vec<Text>>,
    domain_names: Option<Vec<Text>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Pods {
    namespace_selector: ObjectSelector,
    pod_selector: ObjectSelector,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PolicyProtocol {
    tcp: Option<Ported>,
    udp: Option<Ported>,
    sctp: Option<Ported>,
    #[serde(deserialize_with = "text")]
    destination_named_port: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Ported {
    destination_port: Option<DestinationPort>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct DestinationPort {
    number: Option<u16>,
    range: Option<Range>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Range {
    start: u16,
    end: u16,
}

/// Peers of a rule, and the names among them.
#[derive(Default)]
struct Peers {
    selectors: Vec<Selector>,
    names: Vec<FqdnSelector>,
}

pub(super) fn convert(source: &Source<'_>, object: &Value) -> Result<RuleSet, ObjectError> {
    let policy: Policy = source.decode(object)?;
    convert_policy(source, policy).map_err(|fault| source.invalid(fault))
}

fn convert_policy(source: &Source<'_>, policy: Policy) -> Faulty<RuleSet> {
    let spec = policy.spec;
    let tier = match spec.tier.as_str() {
        "Admin" => Tier::ADMIN,
        "Baseline" => Tier::BASELINE,
        other => return Err(("spec.tier".to_owned(), Fault::Word("tier", other.to_owned()))),
    };
    let subject = Subject {
        selector: pod_peer("spec.subject", &spec.subject)?
            .ok_or_else(|| ("spec.subject".to_owned(), Fault::NoSubject))?
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
    let lists = [
        (
            "spec.ingress",
            Direction::Ingress,
            spec.ingress.unwrap_or_default(),
        ),
        ("spec.egress", Direction::Egress, spec.egress.unwrap_or_default()),
    ];
    for (list, direction, rules) in lists {
        if rules.len() > MAX_RULES {
            return Err((list.to_owned(), Fault::TooManyRules));
        }
        for (index, rule) in rules.into_iter().enumerate() {
            let field = at(list, index);
            let verdict = match rule.action.as_str() {
                "Accept" => Verdict::Allow,
                "Deny" => Verdict::Deny,
                "Pass" => Verdict::Pass,
                other => return Err((format!("{field}.action"), Fault::Word("action", other.to_owned()))),
            };
            let (name, peers) = match direction {
                Direction::Ingress => ("from", rule.from),
                Direction::Egress => ("to", rule.to),
            };
            let peers = select(
                source,
                &format!("{field}.{name}"),
                direction,
                verdict,
                peers,
                &mut set,
            )?;
            let traffic = traffic(rule.protocols.as_deref().unwrap_or_default());
            #[expect(clippy::cast_precision_loss, reason = "at most 25")]
            let priority = f64::from(spec.priority) + index as f64 / 100.0;
            let mut add = |peers: Vec<Selector>, traffic: Vec<Traffic>| {
                let position = set.rules.len();
                set.rules.push(Arc::new(Rule {
                    tier,
                    priority,
                    subject: subject.clone(),
                    direction,
                    peers,
                    listed: None,
                    traffic,
                    verdict,
                    default_deny: false,
                    auth: None,
                    origin: Arc::new(RuleOrigin {
                        resource: Some(source.resource()),
                        index: position,
                        field: field.as_str().into(),
                        labels: labels.clone(),
                        log: None,
                    }),
                }));
            };
            add(peers.selectors, traffic);
            if !peers.names.is_empty() {
                add(vec![dns_pods()], dns_traffic(peers.names));
            }
        }
    }
    Ok(set)
}

/// Pods of a peer that selects some.
fn pod_peer(field: &str, peer: &Peer) -> Faulty<Option<LabelSelector>> {
    if let Some(selector) = &peer.namespaces {
        validate::label_selector(&format!("{field}.namespaces"), selector)?;
        return Ok(Some(namespaces(selector)));
    }
    let Some(pods) = &peer.pods else { return Ok(None) };
    validate::label_selector(
        &format!("{field}.pods.namespaceSelector"),
        &pods.namespace_selector,
    )?;
    validate::label_selector(&format!("{field}.pods.podSelector"), &pods.pod_selector)?;
    Ok(Some(pods_of(
        namespaces(&pods.namespace_selector),
        &pods.pod_selector,
    )))
}

fn select(
    source: &Source<'_>,
    field: &str,
    direction: Direction,
    verdict: Verdict,
    peers: Option<Vec<Peer>>,
    set: &mut RuleSet,
) -> Faulty<Peers> {
    let peers = peers.unwrap_or_default();
    let mut found = Peers::default();
    if peers.is_empty() {
        found.selectors.push(Selector::wildcard());
    }
    let settings = source.settings();
    for (index, peer) in peers.iter().enumerate() {
        let field = at(field, index);
        if let Some(labels) = pod_peer(&field, peer)? {
            // Namespaces of all clusters of the mesh are denied; those of the own one are allowed.
            let is_own = verdict == Verdict::Allow && !settings.fail_open;
            let labels = match peer.pods.is_some() || is_own {
                true => in_cluster(source, labels),
                false => labels,
            };
            found.selectors.push(labels.build());
            continue;
        }
        let is_egress = direction == Direction::Egress;
        if let Some(selector) = peer.nodes.as_ref().filter(|_| is_egress) {
            if !settings.node_selector_labels {
                return Err((format!("{field}.nodes"), Fault::ClusterNodes));
            }
            validate::label_selector(&format!("{field}.nodes"), selector)?;
            let of = |reserved: &str| {
                LabelSelector::of(selector, |key| SelectorKey::new(LabelSource::Node, key))
                    .exists(SelectorKey::new(LabelSource::Reserved, reserved))
            };
            found.selectors.push(in_cluster(source, of("host")).build());
            found
                .selectors
                .push(in_cluster(source, of("remote-node")).build());
        } else if let Some(networks) = peer.networks.as_ref().filter(|_| is_egress) {
            for (index, text) in networks.iter().enumerate() {
                let net = network(text).map_err(|fault| (at(&format!("{field}.networks"), index), fault))?;
                set.networks.insert(net);
                found.selectors.push(Selector::cidr(text, net, &[], settings));
            }
        } else if let Some(names) = peer.domain_names.as_ref().filter(|_| is_egress) {
            let names_field = format!("{field}.domainNames");
            if verdict != Verdict::Allow {
                return Err((names_field, Fault::ClusterNames));
            }
            if !settings.l7_proxy {
                return Err((names_field, Fault::ClusterNamesProxy));
            }
            for (index, name) in names.iter().enumerate() {
                let selector = match name.strip_prefix("*.") {
                    Some(rest) => FqdnSelector::pattern(&format!("**.{rest}")),
                    None => FqdnSelector::name(name),
                };
                selector
                    .validate()
                    .map_err(|fault| (at(&names_field, index), Fault::Fqdn(fault)))?;
                found.selectors.push(Selector::fqdn(&selector));
                found.names.push(selector);
            }
        } else if verdict != Verdict::Allow {
            // A peer of a later version must not open anything.
            found.selectors = vec![Selector::wildcard()];
            set.warnings.push(format!("{field}: unknown peer"));
            break;
        } else {
            set.warnings.push(format!("{field}: unknown peer"));
        }
    }
    Ok(found)
}

fn traffic(protocols: &[PolicyProtocol]) -> Vec<Traffic> {
    if protocols.is_empty() {
        return vec![Traffic::ALL];
    }
    let mut traffic = Vec::new();
    let mut add = |ports, protocol| {
        traffic.push(Traffic {
            ports,
            protocol,
            demands: None,
        })
    };
    for item in protocols {
        let ported = [
            (Protocol::TCP, &item.tcp),
            (Protocol::UDP, &item.udp),
            (Protocol::SCTP, &item.sctp),
        ];
        for (protocol, ported) in ported {
            let Some(ported) = ported else { continue };
            let ports = match &ported.destination_port {
                None => Ports::ALL,
                Some(DestinationPort {
                    range: Some(range), ..
                }) => Ports::Number {
                    port: range.start,
                    end: range.end,
                },
                Some(DestinationPort { number, .. }) => Ports::Number {
                    port: number.unwrap_or_default(),
                    end: 0,
                },
            };
            add(ports, protocol);
        }
        if !item.destination_named_port.is_empty() {
            for protocol in Protocol::WITH_PORTS {
                let name = item.destination_named_port.to_ascii_lowercase();
                add(Ports::Name { name, end: 0 }, protocol);
            }
        }
    }
    traffic
}

/// The DNS servers that names are looked up at.
fn dns_pods() -> Selector {
    LabelSelector::default()
        .with(any_key("k8s-app"), "kube-dns")
        .build()
}

fn dns_traffic(names: Vec<FqdnSelector>) -> Vec<Traffic> {
    let demands = Arc::new(PortDemands {
        rules: L7Rules::Dns(names),
        ..PortDemands::default()
    });
    let mut traffic = Vec::new();
    for name in ["dns", "dns-tcp"] {
        for protocol in Protocol::WITH_PORTS {
            let ports = Ports::Name {
                name: name.to_owned(),
                end: 0,
            };
            traffic.push(Traffic {
                ports,
                protocol,
                demands: Some(demands.clone()),
            });
        }
    }
    traffic
}
