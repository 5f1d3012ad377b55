// SPDX-License-Identifier: Apache-2.0

//! Why a packet is allowed or dropped: from the map that programs have, with all rules that are about the packet.

use std::{fmt, sync::Arc};

use skep_identity::NumericIdentity;

use crate::{
    entries::Auth,
    filter::ProxyClass,
    map_state::MapRow,
    policies::Policies,
    ports::{Ports, Protocol, TrafficKey},
    rule::{Direction, RuleOrigin, Tier, Verdict},
    selector::Selector,
};

/// What happens to a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The direction is open: no rule selects the subject.
    Open,
    Allow,
    Redirect(ProxyClass),
    /// A rule denies it.
    Deny,
    /// Rules select the subject, and none allows it.
    Drop,
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open => f.write_str("allowed, no policy selects the subject"),
            Self::Allow => f.write_str("allowed"),
            Self::Redirect(class) => write!(f, "redirected to {class}"),
            Self::Deny => f.write_str("denied"),
            Self::Drop => f.write_str("dropped, no policy allows it"),
        }
    }
}

/// A rule that is about a packet.
#[derive(Clone, Debug, PartialEq)]
pub struct MatchingRule {
    pub origin: Arc<RuleOrigin>,
    pub peer: Selector,
    pub tier: Tier,
    pub verdict: Verdict,
    /// Rules of earlier levels win.
    pub level: u32,
    pub has_decided: bool,
}

/// What happens to a packet, and which rules say so.
#[derive(Clone, Debug, PartialEq)]
pub struct Explanation<'a> {
    pub decision: Decision,
    /// Authentication of the peer.
    pub auth: Option<Auth>,
    /// The entry of the map; `None` for what is dropped by default.
    pub row: Option<MapRow<'a>>,
    /// Rules of the subject about this peer and these ports, by tier and level, those that have decided first.
    pub rules: Vec<MatchingRule>,
    /// Rules that select the subject in this direction, whatever they are about: who looks for a rule that is not listed
    /// above finds it here, or its subject is another one.
    pub selecting: Vec<Arc<RuleOrigin>>,
}

impl Policies {
    /// Explains what happens to a packet between a local endpoint and a peer. `None` for an endpoint without a map.
    pub fn explain(
        &self,
        endpoint: u16,
        direction: Direction,
        peer: NumericIdentity,
        protocol: Protocol,
        port: u16,
    ) -> Option<Explanation<'_>> {
        let map = self.map_of(endpoint)?;
        let identity = self.endpoints().find(|(id, _)| *id == endpoint)?.1;
        let policy = self.local(identity)?.policy().direction(direction);
        let found = map.lookup(direction, peer, protocol, port);
        let decision = match found {
            None => Decision::Drop,
            Some(_) if !policy.is_enforced => Decision::Open,
            Some(found) => match (&found.row.entry.proxy, found.row.entry.is_deny) {
                (_, true) => Decision::Deny,
                (Some(proxy), false) => Decision::Redirect(proxy.class.clone()),
                (None, false) => Decision::Allow,
            },
        };
        let deciding = found.map(|found| &found.row.entry.origins);
        let labels = self.peers().labels(peer);
        let key = TrafficKey::new(protocol, port, 16);
        let mut rules = Vec::new();
        for (filter_key, filter) in &policy.filters {
            let covers = |named: u16| {
                let mut prefixes = filter_key.ports.prefixes(named).into_iter();
                prefixes.any(|(port, bits)| TrafficKey::new(filter_key.protocol, port, bits).covers(key))
            };
            let named = match &filter_key.ports {
                Ports::Name { name, .. } => {
                    self.named_port(endpoint, direction, peer, name, filter_key.protocol)
                }
                _ => Some(0),
            };
            if !named.is_some_and(covers) {
                continue;
            }
            for (selector, said) in filter {
                let is_about =
                    selector.is_wildcard() || labels.is_some_and(|labels| selector.matches(labels));
                if !is_about {
                    continue;
                }
                rules.extend(said.origins.iter().map(|origin| MatchingRule {
                    origin: origin.clone(),
                    peer: selector.clone(),
                    tier: filter_key.tier,
                    verdict: said.verdict,
                    level: said.level,
                    has_decided: deciding.is_some_and(|origins| origins.iter().any(|one| one == origin)),
                }));
            }
        }
        rules.sort_by(|one, other| {
            let place = |rule: &MatchingRule| (!rule.has_decided, rule.tier, rule.level);
            place(one)
                .cmp(&place(other))
                .then_with(|| one.origin.cmp(&other.origin))
        });
        let selecting = self
            .rules_of(identity)
            .into_iter()
            .filter(|rule| rule.direction == direction);
        Some(Explanation {
            decision,
            auth: found.and_then(|found| found.auth),
            row: found.map(|found| found.row),
            rules,
            selecting: selecting.map(|rule| rule.origin.clone()).collect(),
        })
    }
}
