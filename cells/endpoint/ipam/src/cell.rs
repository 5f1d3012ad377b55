// SPDX-License-Identifier: Apache-2.0

//! Cell: allocates addresses. Requires: the address families, optionally a [`PoolSelector`].
//! Provides: [`Ipam`].

use std::sync::Arc;

use hive::{Cell, Cfg, Jobs, Params, SpawnError};
use skep_base_settings::AddressFamilies;

use crate::{
    AddressMetrics, Config, Family, Ipam, IpamMetrics, Mode, PoolSelector, allocator::Allocator,
    metrics::Recorder, pools::Pools, single::SingleAddresses,
};

#[must_use]
pub fn cell() -> Cell {
    Cell::module("ipam", "Allocates addresses of pods and of the node")
        .config::<Config>()
        .provide(skep_base_metrics::provided::<IpamMetrics>)
        .provide(skep_base_metrics::provided::<AddressMetrics>)
        .provide(ipam)
        .run(start)
        .library() // endpoints have their addresses of it
}

#[derive(Params)]
struct IpamParams {
    config: Cfg<Config>,
    families: Cfg<AddressFamilies>,
    selector: Option<Arc<dyn PoolSelector>>,
    metrics: Arc<IpamMetrics>,
    addresses: Arc<AddressMetrics>,
}

fn ipam(params: IpamParams) -> Ipam {
    let IpamParams {
        config,
        families,
        selector,
        metrics,
        addresses,
    } = params;
    let metrics = Recorder {
        ipam: metrics,
        addresses,
    };
    let ipam = Ipam::new(
        (*families).clone(),
        &config.ipam_default_ip_pool,
        selector,
        metrics,
    );
    let allocator = |family| match config.mode {
        Mode::Kubernetes | Mode::ClusterPool => None,
        Mode::MultiPool => Some(Allocator::Pools(Pools::new(family, config.pre_allocation()))),
        Mode::Crd | Mode::Eni | Mode::Azure | Mode::AlibabaCloud => {
            Some(Allocator::Single(SingleAddresses::new(family)))
        }
        Mode::DelegatedPlugin => Some(Allocator::Delegated),
    };
    ipam.change(|state| {
        for family in Family::enabled(&families) {
            *state.allocator(family) = allocator(family);
        }
    });
    if config.mode == Mode::DelegatedPlugin {
        ipam.set_ready();
    }
    ipam
}

fn start(ipam: Ipam, jobs: Jobs) -> Result<(), SpawnError> {
    jobs.keep("release-expired", ipam, Ipam::run_expiration)
}
