// SPDX-License-Identifier: Apache-2.0

//! Metrics, with Cilium's names.

use std::collections::BTreeMap;

use skep_base_metrics::{GaugeVec, Metrics};

use crate::EndpointState;

/// How many endpoints there are.
#[derive(Debug, Metrics)]
#[metrics(prefix = "endpoint")]
pub struct EndpointMetrics {
    /// Number of endpoints by state.
    #[metric(name = "state", labels = ["endpoint_state"])]
    state: GaugeVec,
}

impl EndpointMetrics {
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
