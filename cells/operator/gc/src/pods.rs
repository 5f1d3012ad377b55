// SPDX-License-Identifier: Apache-2.0

//! Cell: restarts pods that were started before there was an agent on their node, by deleting them.
//! Requires: a Kubernetes client, the table `cilium-endpoints`, optionally a clock.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use hive::config::Faults;
use hive::{Cell, Cfg, Job, JobCtx, Jobs, Params, SpawnError};
use parking_lot::Mutex;
use skep_base_metrics::{Gauge, Metrics};
use skep_k8s_client::{Api, Client};
use skep_k8s_crds::Config as CrdConfig;
use skep_k8s_types::selector::{FieldSelector, Selector};
use skep_k8s_types::slim::{Pod, Str};
use statedb::clock::{Clock, SystemClock};
use statedb::{Db, Table};
use tokio::time::Instant;

use crate::failure::{GcError, delete};
use crate::tables::EndpointRow;

/// How long a pod may run without an endpoint.
const AGE: Duration = Duration::from_secs(30);

/// How long a pod of the same name is not restarted again.
const PAUSE: Duration = Duration::from_secs(300);

/// Which pods are restarted.
#[derive(Debug, Clone, hive::Config)]
#[config(validate = Config::check)]
pub struct Config {
    /// Interval of searching for pods without an endpoint; 0: never. Each pass restarts one pod.
    #[config(default = "15s")]
    pub unmanaged_pod_watcher_interval: Duration,
    /// Selector of pods that are restarted if they run without an endpoint.
    #[config(default = "k8s-app=kube-dns")]
    pub pod_restart_selector: String,
}

impl Config {
    fn check(&self, faults: &mut Faults) {
        if let Err(error) = self.pod_restart_selector.parse::<Selector>() {
            faults.add("pod-restart-selector", error.to_string());
        }
    }
}

/// What searches found.
#[derive(Debug, Metrics)]
pub(crate) struct PodMetrics {
    /// Running pods without an endpoint.
    unmanaged_pods: Gauge,
}

hive::catalogue!(cell);

/// Restarts pods without an endpoint.
pub fn cell() -> Cell {
    Cell::module("unmanaged-pods-gc", "Restarts pods without an endpoint")
        .config::<Config>()
        .provide(skep_base_metrics::provided::<PodMetrics>)
        .run(start)
}

#[derive(Params)]
struct WatcherParams {
    config: Cfg<Config>,
    crds: Cfg<CrdConfig>,
    client: Arc<dyn Client>,
    jobs: Jobs,
    db: Db,
    endpoints: Table<EndpointRow>,
    clock: Option<Arc<dyn Clock>>,
    metrics: Arc<PodMetrics>,
}

fn start(params: WatcherParams) -> Result<(), SpawnError> {
    let interval = params.config.unmanaged_pod_watcher_interval;
    if !params.client.is_enabled() || interval.is_zero() || params.crds.disable_endpoint_crd {
        return Ok(());
    }
    // A plan has no selector that its check refused.
    let selector = params.config.pod_restart_selector.parse().unwrap_or_default();
    let watcher = Arc::new(Watcher {
        client: params.client,
        selector,
        db: params.db,
        endpoints: params.endpoints,
        clock: params.clock.unwrap_or_else(|| Arc::new(SystemClock)),
        metrics: params.metrics,
        restarted: Mutex::default(),
    });
    let search = Job::every(interval, "restart", move |cx: JobCtx| {
        let watcher = watcher.clone();
        async move {
            match cx.until_cancelled(watcher.search()).await {
                Some(searched) => searched,
                None => Ok(()),
            }
        }
    });
    params.jobs.spawn(search)
}

struct Watcher {
    client: Arc<dyn Client>,
    selector: Selector,
    db: Db,
    endpoints: Table<EndpointRow>,
    clock: Arc<dyn Clock>,
    metrics: Arc<PodMetrics>,
    /// Pods that were restarted, by namespace and name, and when.
    restarted: Mutex<HashMap<String, Instant>>,
}

impl Watcher {
    async fn search(&self) -> Result<(), GcError> {
        let api = Api::<Pod>::all(self.client.clone())
            .labels(self.selector.clone())
            .fields(FieldSelector::equal("status.phase", "Running"));
        let pods = api.list_all().await.map_err(|cause| GcError::List {
            kind: "Pod".to_owned(),
            cause: cause.into(),
        })?;
        // After the list: an endpoint that came with a pod of it is there.
        let snapshot = self.endpoints.wait_initialized(&self.db).await;
        let unmanaged: Vec<&Arc<Pod>> = pods
            .items
            .iter()
            .filter(|pod| {
                let endpoint = EndpointRow::BY_NAME.key(&name(pod));
                !pod.spec.host_network
                    && pod.metadata.deletion_timestamp.is_none()
                    && self.endpoints.get(&snapshot, endpoint).is_none()
            })
            .collect();
        self.metrics.unmanaged_pods.set(unmanaged.len() as f64);
        let due = {
            let mut restarted = self.restarted.lock();
            restarted.retain(|_, at| at.elapsed() < PAUSE);
            unmanaged
                .into_iter()
                .find(|pod| self.is_old(pod) && !restarted.contains_key(&name(pod)))
        };
        match due {
            Some(pod) => self.restart(pod).await,
            None => Ok(()),
        }
    }

    fn is_old(&self, pod: &Pod) -> bool {
        pod.status
            .start_time
            .is_some_and(|start| Duration::try_from(self.clock.since(start)).unwrap_or_default() > AGE)
    }

    async fn restart(&self, pod: &Pod) -> Result<(), GcError> {
        let metadata = &pod.metadata;
        let api = Api::<Pod>::namespaced(self.client.clone(), &metadata.namespace);
        let deleted = delete(&api, &metadata.name, &metadata.uid, &Str::default(), "Background").await;
        let deleted = deleted.map_err(|cause| GcError::Delete {
            kind: "Pod".to_owned(),
            name: name(pod),
            cause: cause.into(),
        })?;
        if deleted {
            tracing::info!(pod = %name(pod), "Restarted pod without an endpoint");
            self.restarted.lock().insert(name(pod), Instant::now());
        }
        Ok(())
    }
}

fn name(pod: &Pod) -> String {
    format!("{}/{}", pod.metadata.namespace, pod.metadata.name)
}
