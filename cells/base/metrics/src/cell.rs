// SPDX-License-Identifier: Apache-2.0

//! Cell: collects the metrics of all cells and samples them.
//! Requires: the group of [`MetricHandle`]s. Provides: [`Registry`], [`Sampler`], metrics of jobs, tables and reconcilers.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hive::{
    All, Cell, Cfg, HiveMetrics, HookCtx, Job, JobCtx, JobMetrics, Jobs, Lifecycle, Members, SpawnError,
};
use hive_script::text::format_duration;
use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;

use crate::command;
use crate::config::{Config, SamplerConfig};
use crate::hooks::{HiveMetricSet, JobMetricSet, ReconcilerMetricSet, TableMetricSet};
use crate::metric::{MetricHandle, provided};
use crate::namespace::Namespace;
use crate::registry::{Registry, RegistryError};
use crate::sampler::Sampler;

/// The metrics of an agent; see [`cell_in`].
///
/// ```
/// use hive::{Cell, Hive, Members, Settings};
/// use skep_base_metrics::{Counter, MetricHandle, Opts};
///
/// fn new_metrics() -> Members<MetricHandle> {
///     Members(vec![std::sync::Arc::new(Counter::new(Opts::new("hits_total", "Lookups")))])
/// }
/// let cells = [skep_base_metrics::cell(), Cell::module("cache", "Keeps things").provide(new_metrics)];
/// Hive::new(cells).plan(Settings::new()).unwrap();
/// ```
pub fn cell() -> Cell {
    cell_in(Namespace::AGENT)
}

/// The metrics of a hive, under names of `namespace`.
pub fn cell_in(namespace: Namespace) -> Cell {
    with_registry(registry(namespace, Flag("metrics")))
}

/// The metrics of an operator: `--operator-metrics` in place of `--metrics`, which is about those of agents where both
/// read one ConfigMap.
pub fn operator_cell() -> Cell {
    with_registry(registry(Namespace::OPERATOR, Flag("operator-metrics")).config_prefix("operator"))
}

/// The setting that enables and disables metrics.
#[derive(Clone, hive::Value)]
struct Flag(&'static str);

/// Why there are no metrics.
#[derive(Debug, thiserror::Error)]
enum CollectError {
    /// The setting names metrics that no cell has.
    #[error("--{flag}")]
    Setting {
        flag: &'static str,
        #[source]
        cause: RegistryError,
    },
    #[error(transparent)]
    Registry(RegistryError),
}

fn registry(namespace: Namespace, flag: Flag) -> Cell {
    Cell::group([])
        .config::<Config>()
        .provide_private(move || (namespace, flag.clone()))
        .provide(new_registry)
}

fn with_registry(registry: Cell) -> Cell {
    Cell::module("metrics", "Collects and samples metrics")
        .with(registry)
        .config::<SamplerConfig>()
        .provide(new_sampler)
        .provide(new_job_metrics)
        .provide(new_hive_metrics)
        .provide(new_table_metrics)
        .provide(provided::<ReconcilerMetricSet>)
        .provide(command::commands)
        .run(start_sampling)
}

fn new_registry(
    namespace: Namespace,
    Flag(flag): Flag,
    config: Cfg<Config>,
    metrics: All<MetricHandle>,
) -> Result<Arc<Registry>, CollectError> {
    let registry = Registry::in_namespace(namespace, metrics, &config.metrics);
    registry.map(Arc::new).map_err(|cause| match cause {
        RegistryError::Unknown(_) | RegistryError::Change(_) => CollectError::Setting { flag, cause },
        RegistryError::Duplicate(_) => CollectError::Registry(cause),
    })
}

fn new_sampler(config: Cfg<SamplerConfig>, registry: Arc<Registry>) -> Arc<Sampler> {
    Arc::new(Sampler::new(registry, config.sampling_interval))
}

fn new_job_metrics() -> (Arc<dyn JobMetrics>, Members<MetricHandle>) {
    let (set, metrics) = provided::<JobMetricSet>();
    (set, metrics)
}

fn new_hive_metrics() -> (Arc<dyn HiveMetrics>, Members<MetricHandle>) {
    let (set, metrics) = provided::<HiveMetricSet>();
    (set, metrics)
}

fn new_table_metrics() -> (Arc<dyn statedb::Metrics>, Members<MetricHandle>) {
    let (set, metrics) = provided::<TableMetricSet>();
    (set, metrics)
}

/// Samples at start and then at intervals; deletes series that are gone.
fn start_sampling(sampler: Arc<Sampler>, lifecycle: Lifecycle, jobs: Jobs) -> Result<(), SpawnError> {
    let interval = sampler.interval();
    if interval.is_zero() {
        return Ok(());
    }
    let first = Arc::new(Mutex::new(None));
    let (taken, samples) = (first.clone(), sampler.clone());
    // In a hook, so that there are samples as soon as the hive has started.
    lifecycle.on_start("first-sample", move |_: HookCtx| {
        *taken.lock() = Some(take(&samples));
        async {}
    });
    let samples = sampler.clone();
    jobs.spawn(Job::once("collect", move |cx: JobCtx| {
        collect(cx, samples.clone(), first.lock().take())
    }))?;
    jobs.spawn(Job::every(interval, "cleanup", move |_: JobCtx| {
        sampler.forget_gone();
        async {}
    }))
}

/// Takes a sample; returns the number of series and the duration as text.
fn take(sampler: &Sampler) -> (usize, Duration) {
    let started = Instant::now();
    (sampler.sample(), started.elapsed())
}

async fn collect(cx: JobCtx, sampler: Arc<Sampler>, first: Option<(usize, Duration)>) {
    let interval = sampler.interval();
    let (mut count, mut took) = first.unwrap_or_else(|| take(&sampler));
    loop {
        let (duration, next) = (format_duration(took), next_time(interval));
        cx.health.ok(format!(
            "Sampled {count} metrics in {duration}, next collection at {next}"
        ));
        tokio::select! {
            () = cx.token.cancelled() => return,
            () = tokio::time::sleep(interval) => {}
        }
        (count, took) = take(&sampler);
    }
}

fn next_time(interval: Duration) -> Timestamp {
    let interval = SignedDuration::try_from(interval).unwrap_or(SignedDuration::MAX);
    Timestamp::now().checked_add(interval).unwrap_or(Timestamp::MAX)
}
