// SPDX-License-Identifier: Apache-2.0

//! Settings of mirrored EndpointSlices.

use std::time::Duration;

use hive::config::Faults;

/// Whether and how backends of remote clusters become EndpointSlices.
#[derive(Debug, Clone, hive::Config)]
#[config(validate = Config::check)]
pub struct Config {
    /// Sync backends of remote clusters as EndpointSlices: of headless services, and of those with the
    /// annotation `service.cilium.io/global-sync-endpoint-slices`.
    #[config(default = false)]
    pub clustermesh_enable_endpoint_sync: bool,
    /// Maximum number of endpoints of a synced EndpointSlice, 1 to 1000.
    #[config(default = 100)]
    pub clustermesh_endpoints_per_slice: u32,
    /// Batch period of EndpointSlice updates of a service.
    #[config(default = "500ms")]
    pub clustermesh_endpoint_updates_batch_period: Duration,
    /// Number of services whose EndpointSlices are synced concurrently.
    #[config(default = 5)]
    pub clustermesh_concurrent_service_endpoint_syncs: u32,
}

impl Config {
    fn check(&self, faults: &mut Faults) {
        if !(1..=1000).contains(&self.clustermesh_endpoints_per_slice) {
            faults.add("clustermesh-endpoints-per-slice", "it must be from 1 to 1000");
        }
        if self.clustermesh_concurrent_service_endpoint_syncs == 0 {
            faults.add(
                "clustermesh-concurrent-service-endpoint-syncs",
                "it must be at least 1",
            );
        }
    }
}
