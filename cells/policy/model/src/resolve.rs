// SPDX-License-Identifier: Apache-2.0

//! What the rules that select a subject mean for it: filters of both directions.

use std::{collections::BTreeMap, sync::Arc};

use skep_identity::Reserved;

use crate::{
    filter::{Conflict, Filter, FilterKey, Origins, PeerPolicy},
    l7::{L7Rules, ListenerRule, Parser, PortDemands, Secrets, TlsContext, TlsSecret, TlsValues},
    labels::IdentityLabels,
    levels::{TierRange, TooManyLevels, levels},
    ports::Protocol,
    rule::{Direction, Rule, RuleOrigin, Tier, Traffic, Verdict},
    selector::Selector,
    settings::{Enforcement, PolicySettings},
};

/// The rules of a subject cannot be applied: what it had stays.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResolveError {
    /// A rule, and those that it contradicts, which may be of other objects.
    #[error("{rule} and {others}: {conflict}")]
    Conflict {
        rule: Arc<RuleOrigin>,
        others: Origins,
        conflict: Box<Conflict>,
    },
    #[error(transparent)]
    Levels(#[from] TooManyLevels),
    #[error("Listener \"{0}\" in CCNP can not use Kind CiliumEnvoyConfig")]
    NamespacedListener(String),
    #[error("Terminating TLS context is missing certs.")]
    TerminatingTls,
    #[error("Originating TLS context is missing CA certs.")]
    OriginatingTls,
}

/// Policy of a direction.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DirectionPolicy {
    /// Traffic that nothing allows is dropped.
    pub is_enforced: bool,
    pub filters: BTreeMap<FilterKey, Filter>,
    pub tiers: BTreeMap<Tier, TierRange>,
}

impl DirectionPolicy {
    fn policies(&self) -> impl Iterator<Item = &PeerPolicy> {
        self.filters
            .values()
            .flat_map(BTreeMap::values)
            .map(|policy| &**policy)
    }

    /// Nothing but allows of the first level without redirects: their order does not matter.
    pub(crate) fn is_plain(&self) -> bool {
        let is_plain = |policy: &PeerPolicy| {
            policy.level == 0
                && policy.verdict == Verdict::Allow
                && !policy.is_redirect()
                && policy.auth.is_none()
        };
        self.policies().all(is_plain)
    }

    pub(crate) fn has_auth(&self) -> bool {
        self.policies().any(|policy| policy.auth.is_some())
    }
}

/// Policy of a subject: the same for all endpoints of an identity.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SubjectPolicy {
    pub ingress: DirectionPolicy,
    pub egress: DirectionPolicy,
}

impl SubjectPolicy {
    pub fn direction(&self, direction: Direction) -> &DirectionPolicy {
        match direction {
            Direction::Ingress => &self.ingress,
            Direction::Egress => &self.egress,
        }
    }

    /// Resolves the rules that select a subject.
    ///
    /// # Errors
    ///
    /// [`ResolveError`] for rules that contradict each other.
    pub fn resolve(
        rules: &[Arc<Rule>],
        subject: &IdentityLabels,
        settings: &PolicySettings,
        secrets: &Secrets,
    ) -> Result<Self, ResolveError> {
        let scope = Scope {
            subject,
            settings,
            secrets,
        };
        Ok(Self {
            ingress: scope.direction(rules, Direction::Ingress)?,
            egress: scope.direction(rules, Direction::Egress)?,
        })
    }
}

/// The subject, and what its policy depends on beside rules.
struct Scope<'a> {
    subject: &'a IdentityLabels,
    settings: &'a PolicySettings,
    secrets: &'a Secrets,
}

impl Scope<'_> {
    fn direction(&self, rules: &[Arc<Rule>], direction: Direction) -> Result<DirectionPolicy, ResolveError> {
        let mut rules: Vec<Arc<Rule>> = rules
            .iter()
            .filter(|rule| rule.direction == direction)
            .cloned()
            .collect();
        rules.sort_by(|one, other| {
            let place = |rule: &Rule| (rule.tier, rule.priority);
            let ((tier, priority), (other_tier, other_priority)) = (place(one), place(other));
            let by_place = tier.cmp(&other_tier).then(priority.total_cmp(&other_priority));
            by_place
                .then_with(|| one.origin.resource.cmp(&other.origin.resource))
                .then_with(|| one.origin.index.cmp(&other.origin.index))
        });
        let is_host = self.subject.is_reserved(Reserved::Host);
        let enforcement = match self.settings.enforcement {
            _ if is_host && !self.settings.host_firewall => Enforcement::Never,
            Enforcement::Default if self.subject.is_reserved(Reserved::Init) => Enforcement::Always,
            other => other,
        };
        let is_enforced = match enforcement {
            Enforcement::Never => false,
            Enforcement::Always => true,
            Enforcement::Default => !rules.is_empty(),
        };
        if !is_enforced {
            rules.clear();
        }
        let denies_by_default =
            enforcement == Enforcement::Always || rules.iter().any(|rule| rule.default_deny);
        // Who is isolated by a policy of the normal tier is not opened by a later one.
        let is_isolated = rules
            .iter()
            .any(|rule| rule.tier == Tier::NORMAL && rule.default_deny);
        if is_isolated && !self.settings.fail_open {
            rules.retain(|rule| rule.tier != Tier::BASELINE || rule.verdict != Verdict::Allow);
        }
        let has_pass = rules.iter().any(|rule| rule.verdict == Verdict::Pass);
        let mut defaults = Vec::new();
        match (is_enforced, denies_by_default) {
            (false, _) | (true, false) => defaults.push((Selector::wildcard(), Verdict::Allow, "allow-any")),
            (true, true) if rules.is_empty() => {}
            (true, true) => {
                if direction == Direction::Ingress && self.settings.allow_localhost && !is_host {
                    defaults.push((
                        Selector::reserved(Reserved::Host),
                        Verdict::Allow,
                        "allow-localhost",
                    ));
                }
                if has_pass {
                    defaults.push((Selector::wildcard(), Verdict::Deny, "deny-any"));
                }
            }
        }
        for (index, (peer, verdict, name)) in defaults.into_iter().enumerate() {
            rules.push(default_rule(direction, index, peer, verdict, name));
        }
        let places: Vec<_> = rules
            .iter()
            .map(|rule| (rule.tier, rule.priority, rule.verdict))
            .collect();
        let (levels, tiers) = levels(&places)?;
        let mut policy = DirectionPolicy {
            is_enforced,
            filters: BTreeMap::new(),
            tiers,
        };
        for (rule, level) in rules.iter().zip(levels) {
            self.add(&mut policy, rule, level, denies_by_default)?;
        }
        Ok(policy)
    }

    fn add(
        &self,
        policy: &mut DirectionPolicy,
        rule: &Rule,
        level: u32,
        denies_by_default: bool,
    ) -> Result<(), ResolveError> {
        let origins = Origins::of(rule.origin.clone());
        // Any peer makes the others superfluous.
        let wildcard = rule.peers.iter().find(|peer| peer.is_wildcard());
        let peers = wildcard.map_or(rule.peers.as_slice(), std::slice::from_ref);
        for traffic in &rule.traffic {
            let mut said = PeerPolicy::plain(rule.verdict, level, origins.clone());
            said.auth = rule.auth;
            if let Some(demands) = &traffic.demands {
                self.demand(&mut said, demands, traffic)?;
            }
            if rule.verdict == Verdict::Allow && !denies_by_default && !said.rules.is_empty() {
                said.rules.add_wildcard();
            }
            let key = FilterKey {
                tier: rule.tier,
                ports: traffic.ports.clone(),
                protocol: traffic.protocol,
            };
            if peers.is_empty() {
                continue;
            }
            let said = Arc::new(said);
            let filter = policy.filters.entry(key).or_default();
            if filter.is_empty() {
                *filter = peers.iter().map(|peer| (peer.clone(), said.clone())).collect();
                continue;
            }
            for peer in peers {
                match filter.get_mut(peer) {
                    Some(known) => {
                        let merged = Arc::make_mut(known).merge(peer, (*said).clone());
                        merged.map_err(|conflict| ResolveError::Conflict {
                            rule: rule.origin.clone(),
                            others: known.origins.clone(),
                            conflict: Box::new(conflict),
                        })?;
                    }
                    None => {
                        filter.insert(peer.clone(), said.clone());
                    }
                }
            }
        }
        Ok(())
    }

    fn demand(
        &self,
        said: &mut PeerPolicy,
        demands: &PortDemands,
        traffic: &Traffic,
    ) -> Result<(), ResolveError> {
        said.server_names = demands.server_names.clone();
        let has_tls = demands.terminating_tls.is_some()
            || demands.originating_tls.is_some()
            || !demands.server_names.is_empty();
        said.parser = match &demands.rules {
            L7Rules::Dns(_) => Parser::Dns,
            L7Rules::Http(_) if traffic.protocol == Protocol::TCP => Parser::Http,
            _ if has_tls => Parser::Tls,
            _ => Parser::None,
        };
        said.rules = demands.rules.clone();
        said.listener_priority = said.parser.listener_priority();
        if let Some(listener) = &demands.listener {
            said.parser = Parser::Crd;
            said.listener = Some(self.listener(listener)?.into());
            said.listener_priority = match listener.priority {
                0 => Parser::Crd.listener_priority(),
                priority => priority,
            };
        }
        let tls = |context: &Option<TlsContext>| context.as_ref().map(|context| self.secret(context));
        said.terminating_tls = tls(&demands.terminating_tls);
        said.originating_tls = tls(&demands.originating_tls);
        let is_missing = |secret: &Option<TlsSecret>, is_missing: fn(&TlsValues) -> bool| {
            secret
                .as_ref()
                .and_then(|secret| secret.values.as_ref())
                .is_some_and(is_missing)
        };
        if is_missing(&said.terminating_tls, |values| {
            values.certificate.is_empty() || values.private_key.is_empty()
        }) {
            return Err(ResolveError::TerminatingTls);
        }
        match is_missing(&said.originating_tls, |values| values.trusted_ca.is_empty()) {
            true => Err(ResolveError::OriginatingTls),
            false => Ok(()),
        }
    }

    /// Name of a listener; one without a namespace is of a clusterwide configuration.
    fn listener(&self, listener: &ListenerRule) -> Result<String, ResolveError> {
        let namespace = match listener.is_namespaced {
            true => self.subject.namespace(),
            false => "",
        };
        if listener.is_namespaced && namespace.is_empty() {
            return Err(ResolveError::NamespacedListener(listener.name.clone()));
        }
        Ok(format!("{namespace}/{}/{}", listener.config, listener.name))
    }

    fn secret(&self, context: &TlsContext) -> TlsSecret {
        if self.settings.secrets_by_reference {
            return TlsSecret {
                secret: context.secret.clone(),
                values: None,
            };
        }
        let mut secret = context.secret.clone();
        if secret.namespace.is_empty() {
            secret.namespace = self.subject.namespace().to_owned();
        }
        let items = self.secrets.get(&secret);
        let item = |name: &str, default: &str| {
            let name = if name.is_empty() { default } else { name };
            items
                .and_then(|items| items.get(name))
                .cloned()
                .unwrap_or_default()
        };
        TlsSecret {
            values: Some(TlsValues {
                trusted_ca: item(&context.trusted_ca, "ca.crt"),
                certificate: item(&context.certificate, "tls.crt"),
                private_key: item(&context.private_key, "tls.key"),
            }),
            secret,
        }
    }
}

/// What applies if no rule does.
fn default_rule(
    direction: Direction,
    index: usize,
    peer: Selector,
    verdict: Verdict,
    name: &str,
) -> Arc<Rule> {
    #[expect(clippy::cast_precision_loss, reason = "at most 2")]
    let priority = index as f64;
    Arc::new(Rule {
        tier: Tier::DEFAULT,
        priority,
        subject: crate::rule::Subject {
            selector: Selector::wildcard(),
            is_node: false,
        },
        direction,
        peers: vec![peer],
        listed: None,
        traffic: vec![Traffic::ALL],
        verdict,
        default_deny: false,
        auth: None,
        origin: RuleOrigin::default_rule(&format!("{name}-{}", direction.name())),
    })
}
