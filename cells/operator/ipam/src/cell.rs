// SPDX-License-Identifier: Apache-2.0

//! Cell: allocates pod CIDRs to nodes. Requires: a Kubernetes client. Provides nothing else.
//! Only the leader may run it: two operators would allocate the same networks.

use std::sync::Arc;

use hive::{Cell, Cfg, Job, JobCtx, Jobs, Params, SpawnError};
use skep_datapath_config::AddressFamilies;
use skep_k8s_client::Client;

use crate::assign::ClusterPool;
use crate::config::{Config, PoolError};
use crate::nodes::NodePool;

/// Allocates pod CIDRs to nodes, in mode `cluster-pool`.
#[must_use]
pub fn cell() -> Cell {
    Cell::module("operator-ipam", "Allocates pod CIDRs to nodes")
        .config::<Config>()
        .config::<AddressFamilies>()
        .run(start)
}

/// Why the operator does not start.
#[derive(Debug, thiserror::Error)]
enum StartError {
    #[error("cluster pool")]
    Pool(#[from] PoolError),
    #[error(transparent)]
    Job(#[from] SpawnError),
}

#[derive(Params)]
struct StartParams {
    config: Cfg<Config>,
    families: Cfg<AddressFamilies>,
    client: Arc<dyn Client>,
    jobs: Jobs,
}

fn start(params: StartParams) -> Result<(), StartError> {
    let StartParams {
        config,
        families,
        client,
        jobs,
    } = params;
    if !config.allocates() || !client.is_enabled() {
        return Ok(());
    }
    config.pools(&families)?;
    jobs.spawn(Job::once("cluster-pool", move |cx: JobCtx| {
        let (client, config, families) = (client.clone(), config.clone(), families.clone());
        async move {
            // Each run starts from what the nodes hold.
            let pool = ClusterPool::new(config.pools(&families)?);
            let mut nodes = NodePool::new(client, pool, cx.health.clone());
            cx.token.run_until_cancelled(nodes.run()).await;
            Ok::<_, PoolError>(())
        }
    }))?;
    Ok(())
}
