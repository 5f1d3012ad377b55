// SPDX-License-Identifier: Apache-2.0

//! The agent's status: a document to which cells add their parts.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use async_trait::async_trait;
use axum::{
    Json, Router,
    extract::State as Extract,
    http::{HeaderMap, StatusCode},
    routing::get,
};
use hive::{All, Member, Readiness};
use jiff::Timestamp;
use skep_base_api_types::{ModuleStatus, State, Status, StatusResponse};
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::routes::Routes;

/// How long a probe may take before what it reported is stale.
const STALE_AFTER: Duration = Duration::from_secs(15);

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

    /// How long a probe has been waiting for its answer. The part is stale when that takes too long: what it reports was
    /// true before.
    fn pending(&self) -> Option<Duration> {
        None
    }
}

/// Where the status finds the health of modules: `Option`, since programs without it have none.
pub trait ModuleHealth: Send + Sync {
    fn modules(&self) -> Vec<ModuleStatus>;
}

/// Collects the parts of the status.
#[derive(Clone, hive::Value)]
pub(crate) struct Probes {
    probes: All<Arc<dyn StatusProbe>>,
    modules: Option<Arc<dyn ModuleHealth>>,
    readiness: Readiness,
}

impl Probes {
    pub(crate) fn new(
        probes: All<Arc<dyn StatusProbe>>,
        modules: Option<Arc<dyn ModuleHealth>>,
        readiness: Readiness,
    ) -> Self {
        Self {
            probes,
            modules,
            readiness,
        }
    }

    /// The whole document, or with `brief` the overall state alone. `kubernetes_counts`: whether a lost API server
    /// makes the agent unhealthy.
    pub(crate) async fn document(&self, brief: bool, kubernetes_counts: bool) -> StatusResponse {
        let mut response = StatusResponse::default();
        let mut failure = match self.readiness.pending() {
            waiting if waiting.is_empty() => None,
            waiting => Some(Status {
                state: State::Warning,
                msg: format!("starting: waiting for {}", waiting.join(", ")),
            }),
        };
        let stale = self.stale();
        if failure.is_none() && !stale.is_empty() {
            failure = Some(Status {
                state: State::Warning,
                msg: "Stale status data".to_owned(),
            });
        }
        for probe in self.probes.iter() {
            let decides = probe.probe(&mut response).await;
            let decides = decides.filter(|_| kubernetes_counts || probe.name() != "kubernetes");
            let part = decides.filter(|part| !part.state.is_well());
            failure = failure.or_else(|| {
                part.map(|part| Status {
                    state: part.state,
                    msg: probe.failure(&part.msg),
                })
            });
        }
        let cilium = failure.unwrap_or_else(|| Status {
            state: State::Ok,
            msg: env!("CARGO_PKG_VERSION").to_owned(),
        });
        if brief {
            return StatusResponse {
                cilium,
                stale,
                ..StatusResponse::default()
            };
        }
        response.cilium = cilium;
        response.stale = stale;
        // Parts that every client looks for.
        response.kvstore.get_or_insert_default();
        response.kubernetes.get_or_insert_default();
        response.modules_health = self.modules.as_ref().map(|modules| modules.modules());
        response
    }

    /// Parts that are stale, with the time since which they are looked at.
    fn stale(&self) -> BTreeMap<String, String> {
        let now = Timestamp::now();
        self.probes
            .iter()
            .filter_map(|probe| {
                let pending = probe.pending().filter(|pending| *pending > STALE_AFTER)?;
                let since = now.checked_sub(pending).unwrap_or(now);
                Some((probe.name().to_owned(), since.to_string()))
            })
            .collect()
    }

    async fn is_well(&self, kubernetes_counts: bool) -> bool {
        self.document(true, kubernetes_counts).await.cilium.state == State::Ok
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
pub(crate) fn api(status: Probes) -> Member<Routes> {
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
async fn healthz(Extract(status): Extract<Probes>, headers: HeaderMap) -> Json<StatusResponse> {
    let brief = switch(&headers, "brief").unwrap_or_default();
    let kubernetes_counts = switch(&headers, "require-k8s-connectivity").unwrap_or(true);
    Json(status.document(brief, kubernetes_counts).await)
}

/// `GET /healthz` of the loopback port: empty, 200 or 503. A lost API server does not count unless the
/// header `require-k8s-connectivity` says so: restarting the agent would not bring it back.
pub(crate) fn health_router(status: Probes) -> Router {
    Router::new().route("/healthz", get(verdict)).with_state(status)
}

async fn verdict(Extract(status): Extract<Probes>, headers: HeaderMap) -> StatusCode {
    let kubernetes_counts = switch(&headers, "require-k8s-connectivity").unwrap_or_default();
    if status.is_well(kubernetes_counts).await {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    }
}
