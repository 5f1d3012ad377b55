// SPDX-License-Identifier: Apache-2.0

//! Metrics, with Cilium's names.

use std::collections::BTreeMap;

use skep_base_metrics::{GaugeVec, Metrics};

use crate::{Endpoint, EndpointState};

/// How many endpoints there are, and where their policies are enforced.
#[derive(Debug, Metrics)]
pub struct EndpointMetrics {
    /// Number of endpoints by state.
    #[metric(name = "endpoint_state", labels = ["endpoint_state"])]
    state: GaugeVec,
    /// Number of endpoints by policy enforcement.
    #[metric(name = "policy_endpoint_enforcement_status", labels = ["enforcement"])]
    enforcement: GaugeVec,
}

/// By directions, 1 ingress and 2 egress, and audit.
const ENFORCEMENT: [[&str; 2]; 4] = [
    ["none", "none"],
    ["ingress", "audit-ingress"],
    ["egress", "audit-egress"],
    ["both", "audit-both"],
];

impl EndpointMetrics {
    pub(crate) fn count_enforcement<'a>(&self, endpoints: impl Iterator<Item = &'a Endpoint>) {
        let mut counts: BTreeMap<&str, u32> =
            ENFORCEMENT.into_iter().flatten().map(|name| (name, 0)).collect();
        for endpoint in endpoints {
            let enforced = endpoint.policy.map_or(0, |policy| policy.enforced & 3);
            let names = ENFORCEMENT[usize::from(enforced)];
            *counts
                .entry(names[usize::from(endpoint.options.is_audited())])
                .or_default() += 1;
        }
        for (name, count) in counts {
            self.enforcement.with([name]).set(count.into());
        }
    }

    pub(crate) fn count(&self, states: &BTreeMap<u16, EndpointState>) {
        let mut counts = EndpointState::ALL.map(|state| (state, 0_u32));
        for state in states.values() {
            for (_, count) in counts.iter_mut().filter(|(counted, _)| counted == state) {
                *count += 1;
            }
        }
        for (state, count) in counts {
            self.state.with([state.as_str()]).set(count.into());
        }
    }
}
