// SPDX-License-Identifier: Apache-2.0

//! Metrics, with Cilium's names.

use skep_base_metrics::{CounterVec, Histogram, HistogramVec, Metrics};

/// Endpoints that were added to a slice.
pub(crate) const INSERTED: &str = "cepinserted";
/// Endpoints that were removed from a slice.
pub(crate) const REMOVED: &str = "cepremoved";

/// Writes of CiliumEndpointSlices.
#[derive(Debug, Metrics)]
pub(crate) struct SliceMetrics {
    /// Endpoints per CiliumEndpointSlice write.
    #[metric(name = "number_of_ceps_per_ces", buckets = [1.0, 10.0, 25.0, 50.0, 100.0, 200.0, 500.0, 1000.0])]
    pub(crate) endpoints: Histogram,
    /// Endpoint changes per CiliumEndpointSlice write.
    #[metric(name = "number_of_cep_changes_per_ces", labels = ["opcode"], buckets = [1.0, 10.0, 25.0, 50.0, 100.0, 200.0, 500.0, 1000.0])]
    pub(crate) changes: HistogramVec,
    /// CiliumEndpointSlice writes.
    #[metric(name = "ces_sync_total", labels = ["outcome", "failure_type"])]
    pub(crate) syncs: CounterVec,
    /// Queueing delay of CiliumEndpointSlices.
    #[metric(name = "ces_queueing_delay_seconds", labels = ["queue"], buckets = [0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0])]
    pub(crate) delay: HistogramVec,
}
