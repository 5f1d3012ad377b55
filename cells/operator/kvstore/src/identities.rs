// SPDX-License-Identifier: Apache-2.0

//! Cell: deletes identities in the key-value store that no node uses.
//! Requires: a client of the store, settings and metrics of [`skep_operator_gc::identities`], settings of the cluster.

use std::sync::Arc;
use std::time::Duration;

use hive::{Cell, Cfg, Job, JobCtx, Jobs, Params, SpawnError};
use skep_base_metrics::{Gauge, Metrics};
use skep_base_settings::{cluster::ClusterSettings, identity::IdentityConfig};
use skep_identity::{IdentityRange, RangeError};
use skep_identity_kvstore::{GcRound, IdentityGc, IdentityGcOptions};
use skep_kvstore_client::Client;
use skep_operator_gc::identities::{Config, IdentityMetrics, Pass};
use tokio::time::Instant;

/// The ids of a cluster are running out when fewer than one in so many are left.
const FEW: usize = 20;

/// What is left for new identities.
#[derive(Debug, Metrics)]
#[metrics(prefix = "identity")]
pub(crate) struct IdMetrics {
    /// Free identity ids of the cluster at the last garbage collection.
    #[metric(name = "free_ids")]
    free: Gauge,
}

/// Why identities are not judged.
#[derive(Debug, thiserror::Error)]
enum StartError {
    /// The cluster has no ids.
    #[error("identities of the cluster")]
    Range(#[from] RangeError),
    /// The job cannot be started.
    #[error(transparent)]
    Job(#[from] SpawnError),
}

/// What is wrong after a pass.
#[derive(Debug, thiserror::Error)]
enum Concern {
    /// Identities were not judged, see the log. The next pass tries again.
    #[error("{0} identities could not be checked or deleted")]
    Failed(usize),
    /// Fewer label sets have to be in use, or the cluster needs `max-connected-clusters: 255`.
    #[error("only {free} of {size} ids are left for new identities")]
    FewIds { free: usize, size: usize },
}

hive::catalogue!(cell);

/// Deletes identities that no node uses.
pub fn cell() -> Cell {
    Cell::module(
        "kvstore-identities-gc",
        "Deletes identities in the key-value store that no node uses",
    )
    .provide(skep_base_metrics::provided::<IdMetrics>)
    .run(start)
}

#[derive(Params)]
struct CollectorParams {
    config: Cfg<Config>,
    mode: Cfg<IdentityConfig>,
    cluster: Cfg<ClusterSettings>,
    client: Client,
    jobs: Jobs,
    metrics: Arc<IdentityMetrics>,
    ids: Arc<IdMetrics>,
}

fn start(params: CollectorParams) -> Result<(), StartError> {
    let config = &params.config;
    if !params.client.is_enabled()
        || config.identity_gc_interval.is_zero()
        || !params.mode.identity_allocation_mode.uses_kvstore()
    {
        return Ok(());
    }
    let cluster = params.cluster.info();
    let range = IdentityRange::of_cluster(cluster.id, cluster.max_connected_clusters)?;
    let mut options = IdentityGcOptions::new(range);
    options.rate_limit = config.identity_gc_rate_limit;
    options.rate_interval = config.identity_gc_rate_interval;
    let interval = config.identity_gc_interval;
    let (client, metrics, ids) = (params.client, params.metrics, params.ids);
    params.jobs.spawn(Job::once("collect", move |cx: JobCtx| {
        let collector = Collector {
            gc: IdentityGc::new(client.clone(), options.clone()),
            client: client.clone(),
            range,
            interval,
            metrics: metrics.clone(),
            ids: ids.clone(),
        };
        async move {
            cx.until_cancelled(collector.run(&cx)).await;
        }
    }))?;
    Ok(())
}

struct Collector {
    gc: IdentityGc,
    client: Client,
    range: IdentityRange,
    interval: Duration,
    metrics: Arc<IdentityMetrics>,
    ids: Arc<IdMetrics>,
}

impl Collector {
    async fn run(mut self, cx: &JobCtx) {
        self.client.wait_connected().await;
        loop {
            // Passes begin at the interval, however long one takes.
            let next = Instant::now() + self.interval;
            self.pass(cx).await;
            tokio::time::sleep_until(next).await;
        }
    }

    async fn pass(&mut self, cx: &JobCtx) {
        let began = Instant::now();
        let result = self.gc.round().await;
        let round = result.as_ref().copied().unwrap_or_default();
        self.metrics.pass(&Pass {
            kind: "kvstore",
            is_success: result.is_ok() && round.failed == 0,
            took: began.elapsed(),
            alive: round.used + round.marked + round.failed,
            deleted: round.deleted,
        });
        match result {
            Ok(round) => self.report(cx, &round),
            Err(error) => cx.health.degraded("Identities were not checked", &error),
        }
    }

    fn report(&self, cx: &JobCtx, round: &GcRound) {
        let GcRound {
            used,
            marked,
            deleted,
            failed,
            free,
        } = *round;
        let size = self.range.size();
        self.ids.free.set(free as f64);
        if deleted > 0 {
            tracing::info!(deleted, marked, used, free, "Deleted unused identities");
        }
        let concern = match failed {
            0 if free >= size / FEW => {
                return cx.health.ok(format!(
                    "{used} identities are used, {free} of {size} ids are left"
                ));
            }
            0 => Concern::FewIds { free, size },
            _ => Concern::Failed(failed),
        };
        cx.health.degraded("Identities", &concern);
    }
}
