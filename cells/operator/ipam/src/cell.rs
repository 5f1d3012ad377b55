// SPDX-License-Identifier: Apache-2.0

//! Cell: allocates pod CIDRs to nodes. Requires: a Kubernetes client; uses an [`IpamRecorder`]. Provides: [`Pools`], what is
//! allocated in mode `multi-pool`. Only the leader may run it: two operators would allocate the same networks.

use std::sync::Arc;
use std::time::Duration;

use hive::{Backoff, Cell, Cfg, Job, JobCtx, Jobs, Params, Retry, SpawnError};
use parking_lot::Mutex;
use skep_base_settings::AddressFamilies;
use skep_k8s_client::Client;
use skep_k8s_crds::pools::CiliumPodIPPool;

use crate::assign::ClusterPool;
use crate::config::{Config, PoolError};
use crate::multipool::{MultiPool, MultiPoolNodes, create_pools};
use crate::nodes::controller;
use crate::recorder::{IpamRecorder, Unrecorded};

/// Time between two attempts to create a pool.
const RETRY: Duration = Duration::from_secs(15);

/// What is allocated in mode `multi-pool`, as the operator sees it.
#[derive(Debug, Clone, Default, hive::Value)]
pub(crate) struct Pools(pub(crate) Arc<Mutex<MultiPool>>);

/// Allocates pod CIDRs to nodes, in the modes `cluster-pool` and `multi-pool`.
#[must_use]
pub fn cell() -> Cell {
    Cell::module("operator-ipam", "Allocates pod CIDRs to nodes")
        .config::<Config>()
        .config::<AddressFamilies>()
        .provide(Pools::default)
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
    pools: Pools,
    recorder: Option<Arc<dyn IpamRecorder>>,
}

impl StartParams {
    fn recorder(&self) -> Arc<dyn IpamRecorder> {
        self.recorder.clone().unwrap_or_else(|| Arc::new(Unrecorded))
    }
}

fn start(params: StartParams) -> Result<(), StartError> {
    if !params.client.is_enabled() {
        return Ok(());
    }
    if params.config.is_cluster_pool() {
        return start_cluster_pool(params);
    }
    if params.config.is_multi_pool() {
        start_multi_pool(params)?;
    }
    Ok(())
}

fn start_cluster_pool(params: StartParams) -> Result<(), StartError> {
    let recorder = params.recorder();
    let StartParams {
        config,
        families,
        client,
        jobs,
        ..
    } = params;
    config.pools(&families)?;
    jobs.spawn(Job::once("cluster-pool", move |cx: JobCtx| {
        let (client, config, families) = (client.clone(), config.clone(), families.clone());
        let recorder = recorder.clone();
        async move {
            // Each run starts from what the nodes hold.
            let pool = ClusterPool::new(config.pools(&families)?);
            let controller = controller(&client, pool, recorder);
            cx.token.run_until_cancelled(controller.run(&cx.health)).await;
            Ok::<_, PoolError>(())
        }
    }))?;
    Ok(())
}

fn start_multi_pool(params: StartParams) -> Result<(), SpawnError> {
    let recorder = params.recorder();
    let StartParams {
        config,
        client,
        jobs,
        pools,
        ..
    } = params;
    if !config.auto_create_cilium_pod_ip_pools.is_empty() {
        let (client, config) = (client.clone(), config.clone());
        let create = Job::once("create-pools", move |cx: JobCtx| {
            let (client, config) = (client.clone(), config.clone());
            async move {
                let created = create_pools(&client, &config.auto_create_cilium_pod_ip_pools);
                cx.until_cancelled(created).await.unwrap_or(Ok(()))
            }
        });
        jobs.spawn(create.retry(Retry::forever().backoff(Backoff::constant(RETRY))))?;
    }
    jobs.spawn(Job::once("multi-pool", move |cx: JobCtx| {
        let pool = MultiPoolNodes::new(pools.0.clone(), config.migration());
        let controller = controller(&client, pool, recorder.clone());
        let controller = controller.watch_all::<CiliumPodIPPool>(&client);
        async move {
            cx.token.run_until_cancelled(controller.run(&cx.health)).await;
        }
    }))
}
