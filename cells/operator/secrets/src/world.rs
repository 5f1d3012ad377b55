// SPDX-License-Identifier: Apache-2.0

//! Which policies name which Secrets.

use std::collections::{BTreeMap, BTreeSet};

use skep_k8s_crds::policy::{PortRule, Rule, SecretReference, TlsContext};
use skep_k8s_types::ObjectKey;

/// The longest name of an object (RFC 1123).
const MAX_NAME: usize = 253;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum PolicyKind {
    /// CiliumNetworkPolicy: what it names without a namespace is in its own.
    Namespaced,
    /// CiliumClusterwideNetworkPolicy: it names the namespace of each Secret.
    Clusterwide,
}

type Policy = (PolicyKind, ObjectKey);

#[derive(Debug, Default)]
struct Named {
    secrets: BTreeSet<ObjectKey>,
    homeless: BTreeSet<String>,
}

/// Policies, and the Secrets that they name.
#[derive(Debug)]
pub struct World {
    namespace: String,
    policies: BTreeMap<Policy, Named>,
    /// The Secrets that a copy stands for, and how many policies name them.
    copies: BTreeMap<String, BTreeMap<ObjectKey, usize>>,
}

impl World {
    /// No policies; copies go to `namespace`.
    pub fn new(namespace: &str) -> Self {
        Self {
            namespace: namespace.to_owned(),
            policies: BTreeMap::new(),
            copies: BTreeMap::new(),
        }
    }

    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// The name that the copy of a Secret has; `None` for one that is in the namespace of the copies.
    pub fn copy_of(&self, secret: &ObjectKey) -> Option<String> {
        let is_there = *secret.namespace == *self.namespace;
        (!is_there).then(|| format!("{}-{}", secret.namespace, secret.name))
    }

    /// A policy is new, or has changed. Returns the copies that may have to change.
    pub fn set_policy<'a>(
        &mut self,
        kind: PolicyKind,
        key: ObjectKey,
        rules: impl IntoIterator<Item = &'a Rule>,
    ) -> BTreeSet<String> {
        let mut named = Named::default();
        for reference in rules.into_iter().flat_map(references) {
            let namespace = reference.namespace.as_deref().filter(|text| !text.is_empty());
            let namespace = match (namespace, kind) {
                (Some(namespace), _) => namespace.into(),
                (None, PolicyKind::Namespaced) => key.namespace.clone(),
                (None, PolicyKind::Clusterwide) => {
                    named.homeless.insert(reference.name.clone());
                    continue;
                }
            };
            named.secrets.insert(ObjectKey {
                namespace,
                name: reference.name.as_str().into(),
            });
        }
        let mut changed = self.remove_policy(kind, &key);
        for secret in &named.secrets {
            if let Some(copy) = self.copy_of(secret) {
                let secrets = self.copies.entry(copy.clone()).or_default();
                *secrets.entry(secret.clone()).or_default() += 1;
                changed.insert(copy);
            }
        }
        self.policies.insert((kind, key), named);
        changed
    }

    /// A policy is gone. Returns the copies that may have to change.
    pub fn remove_policy(&mut self, kind: PolicyKind, key: &ObjectKey) -> BTreeSet<String> {
        let mut changed = BTreeSet::new();
        let Some(named) = self.policies.remove(&(kind, key.clone())) else {
            return changed;
        };
        for secret in &named.secrets {
            let Some(copy) = self.copy_of(secret) else {
                continue;
            };
            if let Some(secrets) = self.copies.get_mut(&copy) {
                if let Some(count) = secrets.get_mut(secret) {
                    *count -= 1;
                    if *count == 0 {
                        secrets.remove(secret);
                    }
                }
                if secrets.is_empty() {
                    self.copies.remove(&copy);
                }
            }
            changed.insert(copy);
        }
        changed
    }

    pub fn policies(&self, kind: PolicyKind) -> impl Iterator<Item = &ObjectKey> {
        let policies = self.policies.keys();
        policies.filter_map(move |(of, key)| (*of == kind).then_some(key))
    }

    /// The copies that there should be.
    pub fn copies(&self) -> impl Iterator<Item = &str> {
        self.copies.keys().map(String::as_str)
    }

    /// The Secret that a copy is made of; `None` if no policy names one.
    pub fn original(&self, copy: &str) -> Option<&ObjectKey> {
        self.copies.get(copy)?.keys().next()
    }

    /// What cannot be copied, and why.
    pub fn faults(&self) -> Vec<String> {
        let homeless = self.policies.iter().flat_map(|((_, key), named)| {
            let secrets = named.homeless.iter();
            secrets.map(move |name| format!("policy `{key}` names no namespace of Secret `{name}`"))
        });
        let shadowed = self.copies.iter().flat_map(|(copy, secrets)| {
            let mut secrets = secrets.keys();
            let first = secrets.next();
            let others = secrets.filter_map(move |other| Some((first?, other)));
            others.map(move |(first, other)| format!("`{other}`: its copy `{copy}` is that of `{first}`"))
        });
        let long = self.copies.keys().filter(|copy| copy.len() > MAX_NAME);
        let long = long.map(|copy| format!("`{copy}` is longer than {MAX_NAME} characters"));
        homeless.chain(shadowed).chain(long).collect()
    }
}

fn references(rule: &Rule) -> Vec<&SecretReference> {
    let ingress = rule.ingress.iter().flatten().map(|rule| &rule.to_ports);
    let egress = rule.egress.iter().flatten().map(|rule| &rule.to_ports);
    ingress
        .chain(egress)
        .flatten()
        .flatten()
        .flat_map(of_ports)
        .collect()
}

fn of_ports(ports: &PortRule) -> impl Iterator<Item = &SecretReference> {
    let tls = ports.terminating_tls.iter().chain(&ports.originating_tls);
    let http = ports.rules.iter().flat_map(|rules| rules.http.iter().flatten());
    let headers = http.flat_map(|rule| rule.header_matches.iter().flatten());
    let headers = headers.filter_map(|header| header.secret.as_ref());
    tls.map(|context: &TlsContext| &context.secret).chain(headers)
}
