// SPDX-License-Identifier: Apache-2.0

//! The agent's status: a document to which cells add their parts.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use axum::{
    Json, Router,
    extract::State,
    http::{HeaderMap, StatusCode},
    routing::get,
};
use hive::{All, Member, Readiness};
use jiff::Timestamp;
use serde_json::{Map, Value, json};

use crate::server::Routes;

/// How long looking at a part may take before what it says is stale.
const STALE_AFTER: Duration = Duration::from_secs(15);

/// A part of the status, given by a cell as `Member<Arc<dyn StatusProbe>>`.
#[async_trait]
pub trait StatusProbe: Send + Sync {
    /// Key in the status document, such as `kubernetes`.
    fn key(&self) -> &'static str;

    /// The part as it is now. Answers at once: what takes time is looked at beforehand by a job.
    async fn probe(&self) -> Value;

    /// How long the part has been looked at, if that is not finished. A part is stale when it takes too long: what it
    /// says was true before.
    fn pending(&self) -> Option<Duration> {
        None
    }

    /// Whether a `state` other than `Ok` and `Disabled` in the part makes the agent unhealthy.
    fn is_required(&self) -> bool {
        false
    }
}

/// Where the status finds the health of modules: `Option`, since programs without it have none.
pub trait ModuleHealth: Send + Sync {
    /// One element a report: `id`, `level` (`OK`, `Degraded`, `Stopped`), `message`, `error`.
    fn modules(&self) -> Vec<Value>;
}

/// Puts the status together.
#[derive(Clone, hive::Value)]
pub(crate) struct Status {
    probes: All<Arc<dyn StatusProbe>>,
    modules: Option<Arc<dyn ModuleHealth>>,
    readiness: Readiness,
}

impl Status {
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

    /// The whole document, or with `brief` only the verdict. `kubernetes_counts` says whether a lost API server
    /// makes the agent unhealthy.
    pub(crate) async fn document(&self, brief: bool, kubernetes_counts: bool) -> Value {
        let mut document = Map::new();
        let mut verdict = match self.readiness.pending() {
            waiting if waiting.is_empty() => Ok(()),
            waiting => Err((
                "Warning".to_owned(),
                format!("starting: waiting for {}", waiting.join(", ")),
            )),
        };
        let stale = self.stale();
        if verdict.is_ok() && !stale.is_empty() {
            verdict = Err(("Warning".to_owned(), "Stale status data".to_owned()));
        }
        for probe in self.probes.iter() {
            let part = probe.probe().await;
            let state = part["state"].as_str().unwrap_or("Ok").to_owned();
            let counts = probe.is_required() && (kubernetes_counts || probe.key() != "kubernetes");
            if counts && verdict.is_ok() && !matches!(state.as_str(), "Ok" | "Disabled") {
                let message = part["msg"].as_str().unwrap_or_default();
                let name = capitalised(probe.key());
                verdict = Err((
                    state.to_owned(),
                    format!("{name} service is not ready: {message}"),
                ));
            }
            document.insert(probe.key().to_owned(), part);
        }
        let overall = match verdict {
            Ok(()) => json!({"state": "Ok", "msg": env!("CARGO_PKG_VERSION")}),
            Err((state, message)) => json!({"state": state, "msg": message}),
        };
        if brief {
            document.clear();
        }
        document.insert("cilium".to_owned(), overall);
        if !stale.is_empty() {
            document.insert("stale".to_owned(), stale.into());
        }
        if brief {
            return Value::Object(document);
        }
        document
            .entry("kvstore")
            .or_insert_with(|| json!({"state": "Disabled"}));
        if let Some(modules) = &self.modules {
            document.insert("modules-health".to_owned(), modules.modules().into());
        }
        Value::Object(document)
    }

    /// Parts that are stale, with the time since which they are looked at.
    fn stale(&self) -> Map<String, Value> {
        let now = Timestamp::now();
        self.probes
            .iter()
            .filter_map(|probe| {
                let pending = probe.pending().filter(|pending| *pending > STALE_AFTER)?;
                let since = now.checked_sub(pending).unwrap_or(now);
                Some((probe.key().to_owned(), since.to_string().into()))
            })
            .collect()
    }

    async fn is_well(&self, kubernetes_counts: bool) -> bool {
        self.document(true, kubernetes_counts).await["cilium"]["state"] == "Ok"
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
pub(crate) fn routes(status: Status) -> Member<Routes> {
    Member(Routes(
        Router::new().route("/healthz", get(healthz)).with_state(status),
    ))
}

async fn healthz(State(status): State<Status>, headers: HeaderMap) -> Json<Value> {
    let brief = switch(&headers, "brief").unwrap_or_default();
    let kubernetes_counts = switch(&headers, "require-k8s-connectivity").unwrap_or(true);
    Json(status.document(brief, kubernetes_counts).await)
}

/// `GET /healthz` of the loopback port: empty, 200 or 503. A lost API server does not count unless the
/// header `require-k8s-connectivity` says so: restarting the agent would not bring it back.
pub(crate) fn health_router(status: Status) -> Router {
    Router::new().route("/healthz", get(verdict)).with_state(status)
}

async fn verdict(State(status): State<Status>, headers: HeaderMap) -> StatusCode {
    let kubernetes_counts = switch(&headers, "require-k8s-connectivity").unwrap_or_default();
    if status.is_well(kubernetes_counts).await {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    }
}
