// SPDX-License-Identifier: Apache-2.0

//! Cell: addresses of pools for Services of type LoadBalancer.
//! Requires: a Kubernetes client; [`Families`](crate::Families) if another cell provides them. Provides: metrics.

use hive::Cell;

use crate::config::Config;
use crate::controller;
use crate::metrics::LbIpamMetrics;

/// Allocates addresses of CiliumLoadBalancerIPPools to Services. For leaders only: two programs would allocate twice.
pub fn cell() -> Cell {
    Cell::module("lbipam", "Addresses of pools for Services")
        .config::<Config>()
        .provide(skep_base_metrics::provided::<LbIpamMetrics>)
        .run(controller::start)
}
