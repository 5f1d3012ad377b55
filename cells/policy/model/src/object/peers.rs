// SPDX-License-Identifier: Apache-2.0

//! Peers of Cilium's rules.

use std::{collections::BTreeSet, net::IpAddr};

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use ipnet::IpNet;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha224};
use skep_identity::{LabelSource, Labels};
use skep_k8s_types::{selector::Selector as ServiceLabels, slim};

use super::{
    Service,
    cilium::{CidrRule, EgressRule, PeerGroup, PeerService},
    error::{Fault, Faulty, at},
    rules::{Scope, any_key, in_cluster, k8s_key},
    validate,
};
use crate::{
    fqdn::FqdnSelector,
    rule::{Direction, Verdict, entity_selectors},
    selector::{LabelSelector, Selector, SelectorKey},
};

/// Peers that a rule names.
pub(super) enum Peers {
    /// None of the lists is there: any peer, if the rule has ports.
    Absent,
    /// These, which may be none.
    Listed(Vec<Selector>),
}

impl Peers {
    /// Peers of the rule, and how the object lists them if that is different.
    pub(super) fn into_selectors(self, has_ports: bool) -> (Vec<Selector>, Option<Box<[Selector]>>) {
        match self {
            Self::Absent if has_ports => (vec![Selector::wildcard()], Some([].into())),
            Self::Absent => (Vec::new(), Some([].into())),
            // Sorted, so that the filters of each subject are made without comparing them again.
            Self::Listed(mut selectors) => {
                let is_sorted = selectors.is_sorted_by(|one, other| one < other);
                let listed = (!is_sorted).then(|| selectors.clone().into_boxed_slice());
                selectors.sort_unstable();
                selectors.dedup();
                (selectors, listed)
            }
        }
    }
}

pub(super) fn select(
    scope: &Scope<'_>,
    field: &str,
    direction: Direction,
    verdict: Verdict,
    rule: &EgressRule,
    networks: &mut BTreeSet<IpNet>,
) -> Faulty<Peers> {
    let settings = scope.source.settings();
    let is_ingress = direction == Direction::Ingress;
    let name = |ingress: &'static str, egress: &'static str| if is_ingress { ingress } else { egress };
    let filled = |is_filled: bool, ingress, egress| is_filled.then(|| name(ingress, egress));
    fn has<T>(list: Option<&Vec<T>>) -> bool {
        list.is_some_and(|list| !list.is_empty())
    }
    let services = rule.services.as_ref();
    let fqdns = rule.fqdns.as_ref().filter(|_| verdict == Verdict::Allow);
    let mut sorts = [
        filled(has(rule.endpoints.as_ref()), "FromEndpoints", "ToEndpoints"),
        filled(has(rule.cidr.as_ref()), "FromCIDR", "ToCIDR"),
        filled(has(rule.cidr_set.as_ref()), "FromCIDRSet", "ToCIDRSet"),
        filled(has(rule.entities.as_ref()), "FromEntities", "ToEntities"),
        filled(has(services), "", "ToServices"),
        filled(has(rule.groups.as_ref()), "FromGroups", "ToGroups"),
        filled(has(rule.nodes.as_ref()), "FromNodes", "ToNodes"),
        filled(has(fqdns), "", "ToFQDNs"),
    ]
    .into_iter()
    .flatten();
    if let (Some(one), Some(other)) = (sorts.next(), sorts.next()) {
        return Err((field.to_owned(), Fault::Combination(one, other)));
    }

    let mut peers = Vec::new();
    for (index, selector) in rule.endpoints.iter().flatten().enumerate() {
        validate::label_selector(
            &at(
                &format!("{field}.{}", name("fromEndpoints", "toEndpoints")),
                index,
            ),
            selector,
        )?;
        peers.push(scope.peer(selector).build());
    }
    if has(rule.nodes.as_ref()) && !settings.node_selector_labels {
        return Err((
            format!("{field}.{}", name("fromNodes", "toNodes")),
            Fault::NodeLabels,
        ));
    }
    for (index, selector) in rule.nodes.iter().flatten().enumerate() {
        validate::label_selector(
            &at(&format!("{field}.{}", name("fromNodes", "toNodes")), index),
            selector,
        )?;
        let nodes = LabelSelector::of(selector, any_key)
            .exists(SelectorKey::new(LabelSource::Reserved, "remote-node"));
        peers.push(in_cluster(scope.source, nodes).build());
    }
    for (index, text) in rule.cidr.iter().flatten().enumerate() {
        let fault = |fault| {
            (
                at(&format!("{field}.{}", name("fromCIDR", "toCIDR")), index),
                fault,
            )
        };
        let net = network(text).map_err(fault)?;
        networks.insert(net);
        peers.push(Selector::cidr(text, net, &[], settings));
    }
    for (index, cidr) in rule.cidr_set.iter().flatten().enumerate() {
        let field = at(&format!("{field}.{}", name("fromCIDRSet", "toCIDRSet")), index);
        peers.push(cidr_peer(scope, &field, cidr, networks)?);
    }
    for (index, entity) in rule.entities.iter().flatten().enumerate() {
        let Some(selectors) = entity_selectors(entity, &settings.cluster) else {
            let field = at(&format!("{field}.{}", name("fromEntities", "toEntities")), index);
            return Err((field, Fault::Entity(entity.0.clone())));
        };
        peers.extend(selectors);
    }
    for group in rule.groups.iter().flatten() {
        let key = SelectorKey::new(
            LabelSource::CidrGroup,
            &format!("extgrp.cilium.io/{}", group_hash(group)),
        );
        peers.push(LabelSelector::default().with(key, "").build());
    }
    for (index, fqdn) in fqdns.into_iter().flatten().enumerate() {
        let selector = FqdnSelector {
            match_name: fqdn.match_name.clone(),
            match_pattern: fqdn.match_pattern.clone(),
        };
        let fault = |fault| (at(&format!("{field}.toFQDNs"), index), Fault::Fqdn(fault));
        selector.validate().map_err(fault)?;
        peers.push(Selector::fqdn(&selector));
    }
    // Cilium never resolves them in rules that deny.
    if verdict == Verdict::Allow || !settings.fail_open {
        for service in services.into_iter().flatten() {
            service_peers(scope, service, &mut peers, networks);
        }
    }

    let is_empty_list = [
        rule.endpoints.as_ref().is_some_and(Vec::is_empty),
        rule.cidr.as_ref().is_some_and(Vec::is_empty),
        rule.cidr_set.as_ref().is_some_and(Vec::is_empty),
        rule.entities.as_ref().is_some_and(Vec::is_empty),
        rule.nodes.as_ref().is_some_and(Vec::is_empty),
    ];
    let is_resolved_to_nothing = services.is_some() || rule.groups.is_some() || fqdns.is_some();
    let is_listed =
        !peers.is_empty() || is_empty_list.contains(&true) || is_resolved_to_nothing && !settings.fail_open;
    Ok(match is_listed {
        true => Peers::Listed(peers),
        false => Peers::Absent,
    })
}

/// A network, or an address as a network.
pub(super) fn network(text: &str) -> Result<IpNet, Fault> {
    if text.is_empty() {
        return Err(Fault::NoAddress);
    }
    let net = match text.parse::<IpNet>() {
        Ok(net) => Some(net),
        Err(_) => text.parse::<IpAddr>().ok().map(IpNet::from),
    };
    net.map(|net| net.trunc())
        .ok_or_else(|| Fault::Cidr(text.to_owned()))
}

fn prefix(text: &str) -> Result<IpNet, Fault> {
    let net = text.parse::<IpNet>().map_err(|_| Fault::Cidr(text.to_owned()))?;
    Ok(net.trunc())
}

fn cidr_peer(
    scope: &Scope<'_>,
    field: &str,
    rule: &CidrRule,
    networks: &mut BTreeSet<IpNet>,
) -> Faulty<Selector> {
    let settings = scope.source.settings();
    let forms = [
        !rule.cidr.is_empty(),
        !rule.cidr_group_ref.is_empty(),
        rule.cidr_group_selector.is_some(),
    ];
    match forms.into_iter().filter(|is_set| *is_set).count() {
        0 => return Err((field.to_owned(), Fault::NoCidr)),
        1 => {}
        _ => return Err((field.to_owned(), Fault::SeveralCidrs)),
    }
    let net = match rule.cidr.is_empty() {
        true => None,
        false => Some(prefix(&rule.cidr).map_err(|fault| (format!("{field}.cidr"), fault))?),
    };
    let mut except = Vec::new();
    for (index, text) in rule.except.iter().flatten().enumerate() {
        let fault = |fault| (at(&format!("{field}.except"), index), fault);
        let inner = prefix(text).map_err(fault)?;
        if let Some(net) = net
            && !net.contains(&inner)
        {
            return Err(fault(Fault::Except(net.to_string(), inner.to_string())));
        }
        except.push(inner);
    }
    networks.extend(&except);
    if let Some(net) = net {
        networks.insert(net);
        return Ok(Selector::cidr(&rule.cidr, net, &except, settings));
    }
    let Some(selector) = &rule.cidr_group_selector else {
        return Ok(Selector::cidr_group(&rule.cidr_group_ref, &except, settings));
    };
    validate::label_selector(&format!("{field}.cidrGroupSelector"), selector)?;
    let labels = LabelSelector::of(selector, |key| SelectorKey::parse(key, &LabelSource::CidrGroup));
    Ok(Selector::cidr_groups(&labels, &except, settings))
}

/// Hash of a group of a cloud provider, which CiliumCIDRGroups for it have in a label.
fn group_hash(group: &PeerGroup) -> String {
    let mut object = Map::new();
    if let Some(aws) = &group.aws {
        let mut fields = Map::new();
        if let Some(labels) = aws.labels.as_ref().filter(|labels| !labels.is_empty()) {
            fields.insert("labels".to_owned(), json!(labels));
        }
        let lists = [
            ("securityGroupsIds", &aws.security_groups_ids),
            ("securityGroupsNames", &aws.security_groups_names),
        ];
        for (name, list) in lists {
            if let Some(list) = list.as_ref().filter(|list| !list.is_empty()) {
                fields.insert(name.to_owned(), json!(list));
            }
        }
        if !aws.region.is_empty() {
            fields.insert("region".to_owned(), json!(aws.region));
        }
        object.insert("aws".to_owned(), Value::Object(fields));
    }
    BASE64_URL_SAFE_NO_PAD.encode(Sha224::digest(Value::Object(object).to_string()))
}

/// Adds the peers of the Services that are named: pods of their selector, or addresses of their backends.
fn service_peers(
    scope: &Scope<'_>,
    named: &PeerService,
    peers: &mut Vec<Selector>,
    networks: &mut BTreeSet<IpNet>,
) {
    for service in scope.source.context.services {
        if !is_named(named, service) {
            continue;
        }
        if !service.selector.is_empty() {
            let mut labels = LabelSelector::default().with(k8s_key(Labels::NAMESPACE), &service.namespace);
            for (key, value) in &service.selector {
                labels = labels.with(k8s_key(key), value);
            }
            peers.push(scope.peer_of(labels).build());
            continue;
        }
        for backend in &service.backends {
            let net = IpNet::from(*backend);
            networks.insert(net);
            let selector = Selector::cidr(&net.to_string(), net, &[], scope.source.settings());
            if !peers.contains(&selector) {
                peers.push(selector);
            }
        }
    }
}

fn is_named(named: &PeerService, service: &Service) -> bool {
    let is_of = |namespace: &str| namespace.is_empty() || namespace == service.namespace;
    if let Some(wanted) = &named.k8s_service_selector {
        let labels: slim::Labels = service.labels.iter().collect();
        let selector = without_sources(&wanted.selector);
        return is_of(&wanted.namespace)
            && ServiceLabels::try_from(&selector).is_ok_and(|selector| selector.matches(&labels));
    }
    named
        .k8s_service
        .as_ref()
        .is_some_and(|wanted| is_of(&wanted.namespace) && wanted.service_name == service.name)
}

/// Labels of Services have no source.
fn without_sources(selector: &slim::LabelSelector) -> slim::LabelSelector {
    fn key(text: &str) -> &str {
        text.split_once(':').map_or(text, |(_, key)| key)
    }
    let mut bare = selector.clone();
    bare.match_labels = selector
        .match_labels
        .iter()
        .map(|(name, value)| (key(name), value))
        .collect();
    for expression in &mut bare.match_expressions {
        expression.key = key(&expression.key).into();
    }
    bare
}
