// SPDX-License-Identifier: Apache-2.0

//! The agent's status: a document to which cells add their parts.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use async_trait::async_trait;
use axum::{
    Json, Router,
    extract::State as Extract,
    http::{HeaderMap, StatusCode},
    response::IntoResponse,
    routing::get,
};
use hive::{All, Job, JobCtx, Jobs, Member, Readiness, SpawnError};
use jiff::Timestamp;
use parking_lot::Mutex;
use skep_base_api_types::{ClusterStatus, ModuleStatus, State, Status, StatusResponse};
use tokio::time::{Instant, sleep, timeout};
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::routes::Routes;

/// How long a probe may take before what it reported is stale.
const STALE_AFTER: Duration = Duration::from_secs(15);
/// How long a probe may take before its part is a failure.
const FAILED_AFTER: Duration = Duration::from_secs(60);
/// Time of a probe that waits against its contract; the part is stale then.
const TIMEOUT: Duration = Duration::from_secs(1);
/// Time of a probe that had no answer for the request before.
const TIMEOUT_AGAIN: Duration = Duration::from_millis(100);
/// Time until what keeps the agent from being ready is logged.
const READY_WITHIN: Duration = Duration::from_secs(300);

/// A part of the status, provided by a cell as `Member<Arc<dyn StatusProbe>>`.
#[async_trait]
pub trait StatusProbe: Send + Sync {
    /// Name of the part, such as `kubernetes`.
    fn name(&self) -> &'static str;

    /// Fills the part in as it is now. Returns its state if the agent is unhealthy with it in another state than `Ok` and
    /// `Disabled`. Must not wait: a job probes beforehand what takes time.
    async fn probe(&self, response: &mut StatusResponse) -> Option<Status>;

    /// The overall message when this part makes the agent unhealthy; `msg` is that of the part.
    fn failure(&self, msg: &str) -> String {
        format!("{} service is not ready: {msg}", capitalised(self.name()))
    }

    /// How long a probe has been waiting for its answer, by the monotonic clock. The part is stale when that takes longer than
    /// [`stale_after`](Self::stale_after): what it reports was true before.
    fn pending(&self) -> Option<Duration> {
        None
    }

    fn stale_after(&self) -> Duration {
        STALE_AFTER
    }

    /// Shows in the part that there was no answer for a minute.
    fn fail(&self, _response: &mut StatusResponse, _failure: Status) {}
}

/// Where the status finds the health of modules: `Option`, since programs without it have none.
pub trait ModuleHealth: Send + Sync {
    fn modules(&self) -> Vec<ModuleStatus>;
}

/// Collects the parts of the status: computed for each request.
#[derive(Clone, hive::Value)]
pub struct StatusCollector {
    probes: All<Arc<dyn StatusProbe>>,
    modules: Option<Arc<dyn ModuleHealth>>,
    readiness: Readiness,
    /// Probes that did not answer, since when.
    unanswered: Arc<Mutex<BTreeMap<&'static str, Instant>>>,
}

/// Warns once if the agent is not ready in time.
pub(crate) fn report_readiness(readiness: Readiness, jobs: Jobs) -> Result<(), SpawnError> {
    jobs.spawn(Job::once("report-readiness", move |cx: JobCtx| {
        let readiness = readiness.clone();
        async move {
            if cx.until_cancelled(sleep(READY_WITHIN)).await.is_some() && !readiness.is_ready() {
                let waiting = readiness.pending().join(", ");
                tracing::warn!(waiting, "The agent is not ready after {READY_WITHIN:?}");
            }
        }
    }))
}

impl StatusCollector {
    pub(crate) fn new(
        probes: All<Arc<dyn StatusProbe>>,
        modules: Option<Arc<dyn ModuleHealth>>,
        readiness: Readiness,
    ) -> Self {
        Self {
            probes,
            modules,
            readiness,
            unanswered: Arc::default(),
        }
    }

    /// The whole document, or with `brief` the overall state, the first failing job and the prober's state.
    /// `kubernetes_counts`: whether a lost API server makes the agent unhealthy.
    pub async fn document(&self, brief: bool, kubernetes_counts: bool) -> StatusResponse {
        let mut response = StatusResponse::default();
        let mut failures: Vec<(usize, Status)> = Vec::new();
        let mut stale = BTreeMap::new();
        for probe in self.probes.iter() {
            let begun = Instant::now();
            let limit = match self.unanswered.lock().contains_key(probe.name()) {
                true => TIMEOUT_AGAIN,
                false => TIMEOUT,
            };
            let answer = timeout(limit, probe.probe(&mut response)).await;
            let waited = self.waited(&**probe, answer.is_err().then_some(begun));
            if answer.is_err() || waited > probe.stale_after() {
                // The clock may have jumped: only the age is certain.
                let now = Timestamp::now();
                let since = now.checked_sub(waited).unwrap_or(now);
                stale.insert(probe.name().to_owned(), since.to_string());
            }
            if waited > FAILED_AFTER {
                let (name, limit) = (probe.name(), FAILED_AFTER.as_secs());
                let failure = Status {
                    state: State::Failure,
                    msg: format!("no response from {name} probe within {limit} seconds"),
                };
                probe.fail(&mut response, failure);
            }
            let Ok(decides) = answer else { continue };
            let decides = decides.filter(|_| kubernetes_counts || probe.name() != "kubernetes");
            let Some(part) = decides.filter(|part| !part.state.is_well()) else {
                continue;
            };
            let order = ["kvstore", "kubernetes"]
                .iter()
                .position(|name| *name == probe.name());
            let failure = Status {
                state: part.state,
                msg: probe.failure(&part.msg),
            };
            failures.push((order.unwrap_or(usize::MAX), failure));
        }
        let warning = |msg| Status {
            state: State::Warning,
            msg,
        };
        let waiting = self.readiness.pending();
        response.cilium = if !waiting.is_empty() {
            warning(format!("starting: waiting for {}", waiting.join(", ")))
        } else if !stale.is_empty() {
            warning("Stale status data".to_owned())
        } else if let Some((_, failure)) = failures.into_iter().min_by_key(|(order, _)| *order) {
            failure
        } else {
            Status {
                state: State::Ok,
                msg: env!("CARGO_PKG_VERSION").to_owned(),
            }
        };
        response.stale = stale;
        if brief {
            let mut failing = response.controllers.into_iter();
            return StatusResponse {
                cilium: response.cilium,
                stale: response.stale,
                cluster: response.cluster.map(|part| ClusterStatus {
                    own: String::new(),
                    ..part
                }),
                controllers: failing
                    .find(|job| !job.status.last_failure_msg.is_empty())
                    .into_iter()
                    .collect(),
                ..StatusResponse::default()
            };
        }
        // Parts that every client looks for.
        response.kvstore.get_or_insert_default();
        response.kubernetes.get_or_insert_default();
        response.modules_health = self.modules.as_ref().map(|modules| modules.modules());
        response
    }

    /// How long a probe has had no answer, in its job or in the requests for the status.
    fn waited(&self, probe: &dyn StatusProbe, unanswered: Option<Instant>) -> Duration {
        let mut all = self.unanswered.lock();
        let since = match unanswered {
            Some(begun) => Some(*all.entry(probe.name()).or_insert(begun)),
            None => {
                all.remove(probe.name());
                None
            }
        };
        let of_requests = since.map(|since| since.elapsed());
        of_requests.max(probe.pending()).unwrap_or_default()
    }

    async fn is_well(&self, kubernetes_counts: bool) -> bool {
        self.document(true, kubernetes_counts)
            .await
            .cilium
            .state
            .is_well()
    }
}

fn capitalised(word: &str) -> String {
    let mut letters = word.chars();
    letters
        .next()
        .map(|first| first.to_uppercase().chain(letters).collect())
        .unwrap_or_default()
}

fn switch(headers: &HeaderMap, name: &str) -> Option<bool> {
    match headers.get(name)?.to_str().ok()? {
        "true" => Some(true),
        "false" => Some(false),
        _ => None,
    }
}

/// `GET /v1/healthz`.
pub(crate) fn api(status: StatusCollector) -> Member<Routes> {
    Member(Routes::new(
        OpenApiRouter::new().routes(routes!(healthz)).with_state(status),
    ))
}

/// Returns the status of the agent.
#[utoipa::path(
    get,
    path = "/healthz",
    params(
        ("brief" = Option<bool>, Header, description = "Omit details"),
        ("require-k8s-connectivity" = Option<bool>, Header, description = "Require connectivity to the API server; default: true"),
    ),
    responses((status = 200, description = "The status", body = StatusResponse))
)]
async fn healthz(Extract(status): Extract<StatusCollector>, headers: HeaderMap) -> Json<StatusResponse> {
    let brief = switch(&headers, "brief").unwrap_or_default();
    let kubernetes_counts = switch(&headers, "require-k8s-connectivity").unwrap_or(true);
    Json(status.document(brief, kubernetes_counts).await)
}

/// `GET /healthz` of the loopback port: empty, 200 or 503. A lost API server does not count unless the
/// header `require-k8s-connectivity` says so: restarting the agent would not bring it back.
pub(crate) fn health_router(status: StatusCollector) -> Router {
    Router::new()
        .route("/healthz", get(verdict))
        .fallback(missing_page)
        .with_state(status)
}

/// As of Go's servers.
async fn missing_page() -> impl IntoResponse {
    let headers = [("x-content-type-options", "nosniff")];
    (StatusCode::NOT_FOUND, headers, "404 page not found\n")
}

async fn verdict(Extract(status): Extract<StatusCollector>, headers: HeaderMap) -> StatusCode {
    let kubernetes_counts = switch(&headers, "require-k8s-connectivity").unwrap_or_default();
    if status.is_well(kubernetes_counts).await {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    }
}
