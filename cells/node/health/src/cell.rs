// SPDX-License-Identifier: Apache-2.0

//! Cell: probes all nodes, answers the probes of others. Nothing but its part of the status without
//! `enable-health-checking`.
//! Requires: the nodes, the local node, the agent's API. Provides: [`Prober`].

use std::{path::Path, sync::Arc};

use async_trait::async_trait;
use hive::{Cell, Cfg, Jobs, Member, Params, SpawnError};
use skep_base_api::{StatusCollector, StatusProbe};
use skep_base_api_types::{State, Status, StatusResponse};
use skep_base_settings::{AddressFamilies, HealthCheckConfig, NodeName};
use skep_node_local::{LocalNode, LocalNodeStore};
use skep_node_manager::NodeManager;
use statedb::{Db, Table};

use crate::{HealthMetrics, Prober, api::Api, responder::Responder};

#[must_use]
pub fn cell() -> Cell {
    Cell::module("cilium-health", "Probes of the connectivity between nodes")
        .provide(skep_base_metrics::provided::<HealthMetrics>)
        .provide(prober)
        .provide(status)
        .run(start)
}

fn prober(
    nodes: NodeManager,
    config: Cfg<HealthCheckConfig>,
    families: Cfg<AddressFamilies>,
    metrics: Arc<HealthMetrics>,
) -> Arc<Prober> {
    Arc::new(Prober::new(nodes, config, families, metrics))
}

#[derive(Params)]
struct StartParams {
    prober: Arc<Prober>,
    config: Cfg<HealthCheckConfig>,
    families: Cfg<AddressFamilies>,
    api: Cfg<skep_base_api::Config>,
    status: StatusCollector,
    db: Db,
    local: Table<LocalNode>,
    jobs: Jobs,
}

fn start(params: StartParams) -> Result<(), SpawnError> {
    let StartParams {
        prober,
        config,
        families,
        api,
        status,
        db,
        local,
        jobs,
    } = params;
    if !config.nodes {
        return Ok(());
    }
    jobs.keep("probe-nodes", prober.clone(), Prober::run)?;
    let responder = Responder {
        db,
        local,
        families,
        port: config.port,
    };
    jobs.keep("respond", responder, Responder::run)?;
    let socket = Path::new(&api.socket_path).with_file_name("health.sock");
    jobs.keep("serve-health-api", Api::new(socket, status, prober), Api::run)
}

struct Health {
    config: Cfg<HealthCheckConfig>,
    local: LocalNodeStore,
    name: NodeName,
}

/// Part `cluster`: name of the node, and whether it probes.
fn status(
    config: Cfg<HealthCheckConfig>,
    local: LocalNodeStore,
    name: NodeName,
) -> Member<Arc<dyn StatusProbe>> {
    Member(Arc::new(Health { config, local, name }))
}

#[async_trait]
impl StatusProbe for Health {
    fn name(&self) -> &'static str {
        "cilium-health"
    }

    async fn probe(&self, response: &mut StatusResponse) -> Option<Status> {
        let cluster = response.cluster.get_or_insert_default();
        cluster.own = crate::round::local_name(&self.local, &self.name);
        cluster.health = Some(Status {
            state: match self.config.nodes {
                true => State::Ok,
                false => State::Disabled,
            },
            msg: String::new(),
        });
        None
    }
}
