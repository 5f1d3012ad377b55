// SPDX-License-Identifier: Apache-2.0

//! Cell: the health endpoint, with `enable-health-checking` and `enable-endpoint-health-checking`; removes one of an earlier
//! run without.
//! Requires: the endpoints, the addresses of the node itself. Provides nothing.

use std::time::Duration;

use hive::{Cell, Cfg, Job, JobCtx, Jobs, Params, SpawnError};
use skep_base_settings::{AddressFamilies, HealthCheckConfig, KernelConfig, StateConfig};
use skep_endpoint::Endpoints;
use skep_endpoint_ipam::InfrastructureAddress;
use statedb::{Db, Table};

use crate::{endpoint::HealthEndpoint, network::Network};

/// Time between two checks.
const INTERVAL: Duration = Duration::from_secs(60);

#[must_use]
pub fn cell() -> Cell {
    Cell::module("health-endpoint", "Health endpoint of the node").run(start)
}

#[derive(Params)]
struct StartParams {
    config: Cfg<HealthCheckConfig>,
    families: Cfg<AddressFamilies>,
    state: Cfg<StateConfig>,
    kernel: Cfg<KernelConfig>,
    endpoints: Endpoints,
    addresses: Table<InfrastructureAddress>,
    db: Db,
    jobs: Jobs,
}

fn start(params: StartParams) -> Result<(), SpawnError> {
    let StartParams {
        config,
        families,
        state,
        kernel,
        endpoints,
        addresses,
        db,
        jobs,
    } = params;
    let is_wanted = config.has_endpoint();
    let network = Network::new(&state.state_dir, families.ipv6, kernel.sysctl());
    let endpoint = HealthEndpoint::new(config, families, network, endpoints, addresses, db, jobs.clone());
    if !is_wanted {
        return jobs.keep("remove", endpoint, HealthEndpoint::remove);
    }
    let endpoint = std::sync::Arc::new(endpoint);
    // The name by which Cilium's clients know whether there is one.
    let job = Job::every(INTERVAL, "cilium-health-ep", move |cx: JobCtx| {
        let endpoint = endpoint.clone();
        async move { cx.until_cancelled(endpoint.check()).await.unwrap_or(Ok(())) }
    });
    jobs.spawn(job.run_at_start())
}
