// SPDX-License-Identifier: Apache-2.0

//! Cell: the CiliumNode of this node, and the annotations of its Node.
//! Requires: client, local node, [`Ipam`] with its table `infrastructure-addresses`.
//!
//! The CiliumNode is created as soon as the Node is known: its addresses, labels, boot id and pod CIDRs. Addresses that IPAM
//! allocates for the node itself follow; until then those of the previous run stay.

mod config;
mod controller;
mod object;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use hive::{Cell, Cfg, Jobs, Params, SpawnError};
use skep_base_settings::{AddressFamilies, NodeName};
use skep_endpoint_ipam::{InfrastructureAddress, Ipam, sources::OwnNode};
use skep_k8s_client::Client;
use skep_node_local::LocalNode;
use statedb::{Db, Table};

pub use config::Config;

hive::catalogue!(cell);

#[must_use]
pub fn cell() -> Cell {
    Cell::module("cilium-node", "CiliumNode of this node")
        .config::<Config>()
        .run(start)
}

#[derive(Params, Clone)]
struct NodeParams {
    config: Cfg<Config>,
    ipam_config: Cfg<skep_endpoint_ipam::Config>,
    families: Cfg<AddressFamilies>,
    name: NodeName,
    client: Arc<dyn Client>,
    ipam: Ipam,
    db: Db,
    local: Table<LocalNode>,
    own: Table<OwnNode>,
    addresses: Table<InfrastructureAddress>,
}

fn start(params: NodeParams, jobs: Jobs) -> Result<(), SpawnError> {
    if !params.client.is_enabled() {
        return Ok(());
    }
    let job = skep_k8s_controller::job("publish-node", move || controller::controller(params.clone()));
    jobs.spawn(job)
}
