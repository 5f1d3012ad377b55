// SPDX-License-Identifier: Apache-2.0

//! CiliumNetworkPolicy and CiliumClusterwideNetworkPolicy to rules.

use std::sync::Arc;

use serde_json::Value;
use skep_identity::{LabelSource, Labels};
use skep_k8s_types::slim;

use super::{
    Source,
    cilium::{EgressRule, Policy, RuleSpec},
    error::{Class, Fault, Faulty, ObjectError, at},
    layer4, peers, validate, with_value,
};
use crate::{
    rule::{AuthType, Direction, PolicyKind, Rule, RuleOrigin, RuleSet, Subject, Tier, Verdict},
    selector::{LabelSelector, SelectorKey},
};

/// What the parts of a rule depend on.
pub(super) struct Scope<'a> {
    pub source: &'a Source<'a>,
    /// The subject is nodes.
    pub is_node: bool,
    /// The subject has the label of endpoints without labels.
    pub is_init: bool,
}

pub(super) fn convert(source: &Source<'_>, object: &Value) -> Result<RuleSet, ObjectError> {
    let policy: Policy = source.decode(object)?;
    if source.name.is_empty() {
        return Err(source.error("metadata.name", Class::Invalid, Fault::NoName(source.kind.name())));
    }
    let specs = policy.specs.unwrap_or_default();
    let specs = specs
        .into_iter()
        .enumerate()
        .map(|(index, spec)| (at("specs", index), spec));
    let specs: Vec<_> = policy
        .spec
        .into_iter()
        .map(|spec| ("spec".to_owned(), spec))
        .chain(specs)
        .collect();
    if specs.is_empty() {
        return Err(source.error("spec", Class::Invalid, Fault::Empty));
    }
    let mut set = RuleSet::default();
    for (field, spec) in specs {
        convert_spec(source, &field, spec, &policy.metadata.uid, &mut set)
            .map_err(|fault| source.invalid(fault))?;
    }
    Ok(set)
}

fn convert_spec(
    source: &Source<'_>,
    field: &str,
    spec: RuleSpec,
    uid: &str,
    set: &mut RuleSet,
) -> Faulty<()> {
    let fault = |name: &str, fault| match name {
        "" => (field.to_owned(), fault),
        name => (format!("{field}.{name}"), fault),
    };
    let ingress = spec
        .ingress
        .unwrap_or_default()
        .into_iter()
        .map(EgressRule::from)
        .collect::<Vec<_>>();
    let ingress_deny = spec
        .ingress_deny
        .unwrap_or_default()
        .into_iter()
        .map(EgressRule::from)
        .collect::<Vec<_>>();
    let lists = [
        ("ingress", Direction::Ingress, Verdict::Allow, ingress),
        ("ingressDeny", Direction::Ingress, Verdict::Deny, ingress_deny),
        (
            "egress",
            Direction::Egress,
            Verdict::Allow,
            spec.egress.unwrap_or_default(),
        ),
        (
            "egressDeny",
            Direction::Egress,
            Verdict::Deny,
            spec.egress_deny.unwrap_or_default(),
        ),
    ];
    if lists.iter().all(|(.., list)| list.is_empty()) {
        return Err(fault("", Fault::NoDirection));
    }
    let (subject, subject_field) = match (&spec.endpoint_selector, &spec.node_selector) {
        (None, None) => return Err(fault("", Fault::NoSubject)),
        (Some(_), Some(_)) => return Err(fault("nodeSelector", Fault::TwoSubjects)),
        (Some(selector), None) => (selector, "endpointSelector"),
        (None, Some(_)) if source.kind == PolicyKind::CiliumNetworkPolicy => {
            return Err(fault("nodeSelector", Fault::NodeSubject));
        }
        (None, Some(selector)) => (selector, "nodeSelector"),
    };
    validate::label_selector(&format!("{field}.{subject_field}"), subject)?;
    let is_node = spec.node_selector.is_some();
    let mut labels = LabelSelector::of(subject, any_key);
    if source.kind == PolicyKind::CiliumNetworkPolicy {
        let key = k8s_key(Labels::NAMESPACE);
        if labels
            .value_of(&key)
            .is_some_and(|other| other != source.namespace)
        {
            set.warnings
                .push(format!("{field}.{subject_field}: the namespace is the policy's"));
        }
        labels = labels.with(key, source.namespace);
    }
    let is_init = labels
        .keys()
        .any(|key| key.source == LabelSource::Reserved && key.key == "init");
    let scope = Scope {
        source,
        is_node,
        is_init,
    };
    let subject = Subject {
        selector: labels.build(),
        is_node,
    };
    let more = spec.labels.unwrap_or_default().into_iter().map(|label| {
        let source = if label.source.is_empty() {
            "unspec"
        } else {
            &label.source
        };
        with_value(&format!("{source}:{}", label.key), &label.value)
    });
    let labels = source.labels(source.name, uid, more);
    let log = (!spec.log.value.is_empty()).then(|| Arc::from(spec.log.value.as_str()));
    let settings = source.settings();
    for (name, direction, verdict, list) in lists {
        let wanted = match direction {
            Direction::Ingress => spec.enable_default_deny.ingress,
            Direction::Egress => spec.enable_default_deny.egress,
        };
        let default_deny = !settings.non_default_deny || wanted.unwrap_or(true);
        for (index, rule) in list.into_iter().enumerate() {
            let field = at(&format!("{field}.{name}"), index);
            let peers = peers::select(&scope, &field, direction, verdict, &rule, &mut set.networks)?;
            let traffic = layer4::traffic(&scope, &field, direction, verdict, &rule)?;
            let auth = match &rule.authentication {
                Some(auth) if verdict == Verdict::Allow => match AuthType::from_mode(&auth.mode) {
                    None if !settings.fail_open => {
                        return Err((
                            format!("{field}.authentication.mode"),
                            Fault::AuthMode(auth.mode.clone()),
                        ));
                    }
                    known => known,
                },
                _ => None,
            };
            let has_ports = rule.to_ports.as_ref().is_some_and(|list| !list.is_empty())
                || rule.icmps.as_ref().is_some_and(|list| !list.is_empty());
            let (peers, listed) = peers.into_selectors(has_ports);
            set.rules.push(Arc::new(Rule {
                tier: Tier::NORMAL,
                priority: 0.0,
                subject: subject.clone(),
                direction,
                peers,
                listed,
                traffic,
                verdict,
                default_deny,
                auth,
                origin: Arc::new(RuleOrigin {
                    resource: Some(source.resource()),
                    index: set.rules.len(),
                    field: field.into(),
                    labels: labels.clone(),
                    log: log.clone(),
                }),
            }));
        }
    }
    Ok(())
}

pub(super) fn any_key(text: &str) -> SelectorKey {
    SelectorKey::parse(text, &LabelSource::Any)
}

pub(super) fn k8s_key(key: &str) -> SelectorKey {
    SelectorKey::new(LabelSource::K8s, key)
}

/// Key of the label for a label of a pod's namespace.
pub(super) const NAMESPACE_LABELS: &str = "io.cilium.k8s.namespace.labels";

impl Scope<'_> {
    /// A selector of peers: of the policy's namespace and the own cluster, unless it says otherwise.
    pub(super) fn peer(&self, selector: &slim::LabelSelector) -> LabelSelector {
        self.peer_of(LabelSelector::of(selector, any_key))
    }

    pub(super) fn peer_of(&self, selector: LabelSelector) -> LabelSelector {
        if selector.keys().any(|key| key.source == LabelSource::Reserved) {
            return selector;
        }
        let is_k8s = |key: &SelectorKey| matches!(key.source, LabelSource::K8s | LabelSource::Any);
        let has_namespace = selector
            .keys()
            .any(|key| is_k8s(key) && key.key == Labels::NAMESPACE);
        let has_labels = selector
            .keys()
            .any(|key| is_k8s(key) && key.key.starts_with("io.cilium.k8s.namespace.labels."));
        let selector = match self.source.kind {
            PolicyKind::CiliumNetworkPolicy if !has_namespace && !has_labels => {
                selector.with(k8s_key(Labels::NAMESPACE), self.source.namespace)
            }
            PolicyKind::CiliumClusterwideNetworkPolicy if !has_namespace && !self.is_init => {
                selector.exists(k8s_key(Labels::NAMESPACE))
            }
            _ => selector,
        };
        in_cluster(self.source, selector)
    }
}

/// Limits peers to the own cluster, unless they name one.
pub(super) fn in_cluster(source: &Source<'_>, selector: LabelSelector) -> LabelSelector {
    let settings = source.settings();
    let is_named = selector
        .keys()
        .any(|key| matches!(key.source, LabelSource::K8s | LabelSource::Any) && key.key == Labels::CLUSTER);
    match settings.default_local_cluster && !is_named {
        true => selector.with(k8s_key(Labels::CLUSTER), &settings.cluster),
        false => selector,
    }
}
