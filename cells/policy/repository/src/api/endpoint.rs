// SPDX-License-Identifier: Apache-2.0

//! The policy of an endpoint in the model of Cilium's agent API.

use skep_base_api_types::{EndpointPolicy, L4Policy, PolicyRule};
use skep_policy_model::{
    Direction, MapState, Protocol,
    document::{FilterDocument, filters},
};

use crate::Repository;

impl Repository {
    /// The revision of the rules.
    #[must_use]
    pub fn revision(&self) -> u64 {
        self.with(|policies| policies.revision())
    }

    /// The desired policy of an endpoint; `None` until it is computed.
    pub fn endpoint_policy(&self, endpoint: u16) -> Option<EndpointPolicy> {
        self.with(|policies| {
            let map = policies.map_of(endpoint)?;
            let (_, identity) = policies.endpoints().find(|(id, _)| *id == endpoint)?;
            let local = policies.local(identity)?;
            let policy = local.policy();
            let enabled = match (policy.ingress.is_enforced, policy.egress.is_enforced) {
                (false, false) => "none",
                (true, false) => "ingress",
                (false, true) => "egress",
                (true, true) => "both",
            };
            let ingress = filters(&policy.ingress).into_iter();
            Some(EndpointPolicy {
                id: identity.get(),
                build: local.revision(),
                policy_revision: local.revision(),
                policy_enabled: enabled.to_owned(),
                allowed_egress_identities: identities(map, Direction::Egress, false),
                allowed_ingress_identities: identities(map, Direction::Ingress, false),
                denied_egress_identities: identities(map, Direction::Egress, true),
                denied_ingress_identities: identities(map, Direction::Ingress, true),
                l4: L4Policy {
                    egress: filters(&policy.egress)
                        .into_iter()
                        .map(|filter| PolicyRule {
                            rules_by_selector: Default::default(),
                            ..rule(filter)
                        })
                        .collect(),
                    ingress: ingress.map(rule).collect(),
                },
            })
        })
    }
}

/// Identities of the entries for all protocols.
fn identities(map: &MapState, direction: Direction, is_deny: bool) -> Option<Vec<u32>> {
    let rows = map.rows().filter(|row| {
        row.direction == direction && row.key.protocol == Protocol::ANY && row.entry.is_deny == is_deny
    });
    let mut identities: Vec<u32> = rows.map(|row| row.identity.get()).collect();
    identities.sort_unstable();
    Some(identities).filter(|identities| !identities.is_empty())
}

fn rule(filter: FilterDocument) -> PolicyRule {
    let texts = |labels: &[Box<str>]| labels.iter().map(ToString::to_string).collect();
    PolicyRule {
        derived_from_rules: filter.derived_from.iter().map(|labels| texts(labels)).collect(),
        rule: filter.rule,
        rules_by_selector: filter
            .by_selector
            .iter()
            .map(|(selector, rules)| {
                let rules = rules.iter().map(|labels| texts(labels)).collect();
                (selector.clone(), rules)
            })
            .collect(),
    }
}
