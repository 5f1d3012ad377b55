// SPDX-License-Identifier: Apache-2.0

//! Cell: deletes CiliumEndpoints whose pod is gone or has ended.
//! Requires: a Kubernetes client, the tables `cilium-endpoints` and `operator-pods`, optionally a clock.

use std::sync::Arc;
use std::time::Duration;

use hive::{Backoff, Cell, Cfg, Job, JobCtx, Jobs, Params, Retry, SpawnError};
use skep_base_metrics::{CounterVec, Metrics};
use skep_k8s_client::{Api, Client};
use skep_k8s_crds::Config as CrdConfig;
use skep_k8s_types::slim::{CiliumEndpoint, Str};
use statedb::clock::{Clock, SystemClock};
use statedb::{Db, ReadTxn, Table};

use crate::failure::{GcError, Rejected, delete, delete_all};
use crate::tables::{EndpointRow, Owner, PodRow};

/// When CiliumEndpoints are judged.
#[derive(Debug, Clone, hive::Config)]
pub struct Config {
    /// Interval of CiliumEndpoint garbage collection, and minimum age of deleted objects. 0: delete all once,
    /// for clusters without CiliumEndpoints.
    #[config(default = "5m")]
    pub cilium_endpoint_gc_interval: Duration,
}

/// Results of deletions.
#[derive(Debug, Metrics)]
#[metrics(labels = ["outcome"])]
pub(crate) struct EndpointMetrics {
    /// CiliumEndpoint deletions by outcome.
    #[metric(name = "endpoint_gc_objects")]
    objects: CounterVec,
}

hive::catalogue!(cell);

/// Deletes CiliumEndpoints without a pod.
pub fn cell() -> Cell {
    Cell::module("k8s-endpoints-gc", "Deletes CiliumEndpoints without a pod")
        .config::<Config>()
        .provide(skep_base_metrics::provided::<EndpointMetrics>)
        .run(start)
}

#[derive(Params)]
struct CollectorParams {
    config: Cfg<Config>,
    crds: Cfg<CrdConfig>,
    client: Arc<dyn Client>,
    jobs: Jobs,
    db: Db,
    endpoints: Table<EndpointRow>,
    pods: Table<PodRow>,
    clock: Option<Arc<dyn Clock>>,
    metrics: Arc<EndpointMetrics>,
}

fn start(params: CollectorParams) -> Result<(), SpawnError> {
    if !params.client.is_enabled() {
        return Ok(());
    }
    let interval = params.config.cilium_endpoint_gc_interval;
    if interval.is_zero() || params.crds.disable_endpoint_crd {
        return delete_once::<CiliumEndpoint>(&params.jobs, params.client);
    }
    let collector = Arc::new(Collector {
        client: params.client,
        db: params.db,
        endpoints: params.endpoints,
        pods: params.pods,
        clock: params.clock.unwrap_or_else(|| Arc::new(SystemClock)),
        metrics: params.metrics,
        age: interval,
    });
    let pass = Job::every(interval, "collect", move |cx: JobCtx| {
        let collector = collector.clone();
        async move {
            match cx.until_cancelled(collector.pass()).await {
                Some(passed) => passed,
                None => Ok(()),
            }
        }
    });
    params.jobs.spawn(pass.run_at_start())
}

/// Deletes all objects of a kind that is not in use any more, once.
pub(crate) fn delete_once<T: skep_k8s_types::Resource>(
    jobs: &Jobs,
    client: Arc<dyn Client>,
) -> Result<(), SpawnError> {
    let backoff = Backoff::exponential(Duration::from_secs(1), Duration::from_secs(60));
    let all = Job::once("delete-all", move |_: JobCtx| {
        let client = client.clone();
        async move {
            let deleted = delete_all::<T>(&client).await?;
            tracing::info!(kind = %T::kind().kind, deleted, "Deleted all unused objects");
            Ok::<_, GcError>(())
        }
    });
    jobs.spawn(all.retry(Retry::forever().backoff(backoff)))
}

struct Collector {
    client: Arc<dyn Client>,
    db: Db,
    endpoints: Table<EndpointRow>,
    pods: Table<PodRow>,
    clock: Arc<dyn Clock>,
    metrics: Arc<EndpointMetrics>,
    age: Duration,
}

impl Collector {
    async fn pass(&self) -> Result<(), GcError> {
        self.endpoints.wait_initialized(&self.db).await;
        let snapshot = self.pods.wait_initialized(&self.db).await;
        let stale: Vec<_> = self
            .endpoints
            .all(&snapshot)
            .filter(|endpoint| self.is_stale(endpoint, &snapshot))
            .map(|endpoint| endpoint.metadata.clone())
            .collect();
        let mut rejected = Rejected::default();
        for endpoint in stale {
            let api = Api::<CiliumEndpoint>::namespaced(self.client.clone(), &endpoint.namespace);
            // A change of the status is no reason to keep it: only the uid counts.
            let any = Str::default();
            match delete(&api, &endpoint.name, &endpoint.uid, &any, "Background").await {
                Ok(true) => {
                    tracing::info!(namespace = %endpoint.namespace, name = %endpoint.name, "Deleted CiliumEndpoint without a pod");
                    self.metrics.objects.with(["success"]).inc();
                }
                Ok(false) => {}
                Err(cause) => {
                    self.metrics.objects.with(["fail"]).inc();
                    rejected.keep(GcError::Delete {
                        kind: "CiliumEndpoint".to_owned(),
                        name: format!("{}/{}", endpoint.namespace, endpoint.name),
                        cause: cause.into(),
                    })?;
                }
            }
        }
        rejected.finish()
    }

    /// Pods and endpoints come by two watches, neither of which is ahead of the other: young ones are skipped.
    fn is_stale(&self, endpoint: &EndpointRow, snapshot: &impl ReadTxn) -> bool {
        let Owner::Pod(pod) = &endpoint.owner else {
            return false;
        };
        let is_young = endpoint.created.is_none_or(|created| {
            Duration::try_from(self.clock.since(created)).unwrap_or_default() < self.age
        });
        if is_young {
            return false;
        }
        let name = format!("{}/{pod}", endpoint.metadata.namespace);
        let pod = self.pods.get(snapshot, PodRow::BY_NAME.key(&name));
        pod.is_none_or(|pod| pod.has_ended())
    }
}
