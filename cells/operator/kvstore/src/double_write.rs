// SPDX-License-Identifier: Apache-2.0

//! Cell: compares CiliumIdentities with the identities in the key-value store, where agents write both.
//! Requires: a client of the store, [`ObjectIdentities`], settings of [`skep_operator_gc::identities`].
//!
//! A cluster may move from one to the other when neither place has identities that the other lacks.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use hive::{Cell, Cfg, Job, JobCtx, Jobs, Params, SpawnError};
use skep_base_metrics::{Gauge, Metrics};
use skep_base_settings::identity::IdentityConfig;
use skep_clustermesh_types::Kind;
use skep_kvstore_client::{Client, Error};
use skep_operator_gc::identities::ObjectIdentities;

/// How often identities are compared.
#[derive(Debug, Clone, hive::Config)]
pub struct Config {
    /// Interval of comparing CiliumIdentities with the key-value store in doublewrite modes.
    #[config(default = "1m")]
    pub double_write_metric_reporter_interval: Duration,
}

/// How many identities are where, with Cilium's names.
#[derive(Debug, Metrics)]
#[metrics(prefix = "doublewrite")]
pub(crate) struct DoubleWriteMetrics {
    /// CiliumIdentities.
    #[metric(name = "crd_identities")]
    objects: Gauge,
    /// Identities in the key-value store.
    #[metric(name = "kvstore_identities")]
    keys: Gauge,
    /// CiliumIdentities missing in the key-value store.
    #[metric(name = "crd_only_identities")]
    only_objects: Gauge,
    /// Identities in the key-value store without a CiliumIdentity.
    #[metric(name = "kvstore_only_identities")]
    only_keys: Gauge,
}

hive::catalogue!(cell);

/// Compares the two places of identities.
pub fn cell() -> Cell {
    Cell::module(
        "double-write-metric-reporter",
        "Compares CiliumIdentities with the identities in the key-value store",
    )
    .config::<Config>()
    .provide(skep_base_metrics::provided::<DoubleWriteMetrics>)
    .run(start)
}

#[derive(Params)]
struct ReporterParams {
    config: Cfg<Config>,
    identities: Cfg<IdentityConfig>,
    client: Client,
    objects: ObjectIdentities,
    metrics: Arc<DoubleWriteMetrics>,
    jobs: Jobs,
}

fn start(params: ReporterParams) -> Result<(), SpawnError> {
    let interval = params.config.double_write_metric_reporter_interval;
    let mode = params.identities.identity_allocation_mode;
    let is_double = mode.uses_objects() && mode.uses_kvstore();
    if !is_double || !params.client.is_enabled() || interval.is_zero() {
        return Ok(());
    }
    let reporter = Arc::new(Reporter {
        client: params.client,
        objects: params.objects,
        metrics: params.metrics,
    });
    let pass = Job::every(interval, "compare", move |cx: JobCtx| {
        let reporter = reporter.clone();
        async move {
            match cx.until_cancelled(reporter.compare()).await {
                Some(compared) => compared,
                None => Ok(()),
            }
        }
    });
    params.jobs.spawn(pass.run_at_start())
}

struct Reporter {
    client: Client,
    objects: ObjectIdentities,
    metrics: Arc<DoubleWriteMetrics>,
}

impl Reporter {
    async fn compare(&self) -> Result<(), Error> {
        let prefix = format!("{}/", Kind::Identities.prefix("", false));
        let listed = self.client.list(&prefix).await?;
        let keys: HashSet<&str> = listed
            .items
            .iter()
            .filter_map(|item| item.key.strip_prefix(&prefix))
            .collect();
        let objects = self.objects.names().await;
        let in_both = objects.iter().filter(|name| keys.contains(&***name)).count();
        let (only_objects, only_keys) = (objects.len() - in_both, keys.len() - in_both);
        self.metrics.objects.set(objects.len() as f64);
        self.metrics.keys.set(keys.len() as f64);
        self.metrics.only_objects.set(only_objects as f64);
        self.metrics.only_keys.set(only_keys as f64);
        Ok(())
    }
}
