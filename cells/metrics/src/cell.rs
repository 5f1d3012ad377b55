// SPDX-License-Identifier: Apache-2.0

//! Cell: collects the metrics of all cells, serves and samples them.
//! Needs: the group of [`MetricHandle`]s. Gives: [`Registry`], [`Sampler`], metrics of jobs, tables and reconcilers.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hive::{All, Cell, Cfg, Job, JobCtx, JobMetrics, Jobs, Members, SpawnError};
use hive_script::text::format_duration;
use jiff::{SignedDuration, Timestamp};

use crate::config::Config;
use crate::hooks::{JobMetricSet, ReconcilerMetricSet, TableMetricSet};
use crate::metric::{MetricHandle, supply};
use crate::registry::{Registry, RegistryError};
use crate::sampler::Sampler;
use crate::{command, endpoint};

/// The metrics of a hive.
///
/// ```
/// use hive::{Cell, Hive, Members, Settings};
/// use skep_metrics::{Counter, MetricHandle, Opts};
///
/// fn new_metrics() -> Members<MetricHandle> {
///     Members(vec![std::sync::Arc::new(Counter::new(Opts::new("hits_total", "Lookups")))])
/// }
/// let cells = [skep_metrics::cell(), Cell::module("cache", "Keeps things").provide(new_metrics)];
/// Hive::new(cells).plan(Settings::new()).unwrap();
/// ```
pub fn cell() -> Cell {
    Cell::module("metrics", "Collects and serves and samples metrics")
        .config::<Config>()
        .provide(new_registry)
        .provide(new_sampler)
        .provide(new_job_metrics)
        .provide(new_table_metrics)
        .provide(new_reconciler_metrics)
        .provide(command::commands)
        .run(start_sampling)
        .run(endpoint::serve)
}

fn new_registry(config: Cfg<Config>, metrics: All<MetricHandle>) -> Result<Arc<Registry>, RegistryError> {
    Registry::new(metrics, &config.metrics).map(Arc::new)
}

fn new_sampler(config: Cfg<Config>, registry: Arc<Registry>) -> Arc<Sampler> {
    Arc::new(Sampler::new(registry, config.sampling_interval))
}

fn new_job_metrics() -> (Arc<dyn JobMetrics>, Members<MetricHandle>) {
    let (set, metrics) = supply(JobMetricSet::new());
    (set, metrics)
}

fn new_table_metrics() -> (Arc<dyn statedb::Metrics>, Members<MetricHandle>) {
    let (set, metrics) = supply(TableMetricSet::new());
    (set, metrics)
}

fn new_reconciler_metrics() -> (Arc<ReconcilerMetricSet>, Members<MetricHandle>) {
    supply(ReconcilerMetricSet::new())
}

/// Samples at start and then at intervals; forgets series that are gone.
fn start_sampling(sampler: Arc<Sampler>, jobs: Jobs) -> Result<(), SpawnError> {
    let interval = sampler.interval();
    if interval.is_zero() {
        return Ok(());
    }
    let samples = sampler.clone();
    jobs.spawn(Job::once("collect", move |cx: JobCtx| {
        collect(cx, samples.clone())
    }))?;
    jobs.spawn(Job::every(interval, "cleanup", move |_: JobCtx| {
        sampler.forget_gone();
        async {}
    }))
}

async fn collect(cx: JobCtx, sampler: Arc<Sampler>) {
    let interval = sampler.interval();
    loop {
        let started = Instant::now();
        let count = sampler.sample();
        let took = format_duration(started.elapsed());
        let next = next_time(interval);
        cx.health.ok(format!(
            "Sampled {count} metrics in {took}, next collection at {next}"
        ));
        tokio::select! {
            () = cx.token.cancelled() => return,
            () = tokio::time::sleep(interval) => {}
        }
    }
}

fn next_time(interval: Duration) -> Timestamp {
    let interval = SignedDuration::try_from(interval).unwrap_or(SignedDuration::MAX);
    Timestamp::now().checked_add(interval).unwrap_or(Timestamp::MAX)
}
