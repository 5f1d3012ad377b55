// SPDX-License-Identifier: Apache-2.0

//! Metrics, with Cilium's names.

use skep_metrics::{GaugeVec, Metrics};
use statedb::{ReadTxn, Table};

use crate::{Endpoint, EndpointState};

/// How many endpoints there are.
#[derive(Debug, Metrics)]
#[metrics(prefix = "endpoint")]
pub struct EndpointMetrics {
    /// Number of endpoints by their state.
    #[metric(name = "state", labels = ["endpoint_state"])]
    state: GaugeVec,
}

impl EndpointMetrics {
    pub(crate) fn count(&self, table: &Table<Endpoint>, txn: &impl ReadTxn) {
        for state in EndpointState::ALL {
            let count = table.all(txn).filter(|row| row.state() == state).count();
            self.state.with([state.as_str()]).set(count as f64);
        }
    }
}
