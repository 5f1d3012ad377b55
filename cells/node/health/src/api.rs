// SPDX-License-Identifier: Apache-2.0

//! `/v1beta` on the unix socket `health.sock`, in the form of Cilium's health API.

use std::{path::PathBuf, sync::Arc};

use axum::{
    Json, Router,
    extract::State,
    routing::{get, put},
};
use hive::JobCtx;
use skep_base_api::{StatusCollector, with_errors};
use skep_base_api_types::{HealthResponse, HealthStatusResponse, LoadResponse};
use skep_listen::{
    BindError, Server, Unix,
    http::{Http1, TowerToHyperService},
};
use tokio::time::Instant;

use crate::Prober;

/// As the socket of the agent.
const MODE: u32 = 0o660;
const GROUP: &str = "cilium";

#[derive(Clone)]
struct Shared {
    status: StatusCollector,
    prober: Arc<Prober>,
    begun: Instant,
}

pub(crate) struct Api {
    socket: PathBuf,
    shared: Shared,
}

impl Api {
    pub(crate) fn new(socket: PathBuf, status: StatusCollector, prober: Arc<Prober>) -> Self {
        let begun = Instant::now();
        Self {
            socket,
            shared: Shared {
                status,
                prober,
                begun,
            },
        }
    }

    pub(crate) async fn run(&self, cx: &JobCtx) -> Result<(), BindError> {
        let listener = Unix::new(&self.socket).mode(MODE).group(GROUP).bind()?;
        cx.health.ok("Listening");
        let router = TowerToHyperService::new(router(self.shared.clone()));
        let server = Server::new("health API", listener);
        Http1::new().serve_all(server, router, cx.token.clone()).await;
        Ok(())
    }
}

fn router(shared: Shared) -> Router {
    let router = Router::new()
        .route("/v1beta/healthz", get(healthz))
        .route("/v1beta/status", get(status))
        // Only the last results: no probe is made.
        .route("/v1beta/status/probe", put(status))
        .with_state(shared);
    with_errors(router)
}

async fn healthz(State(shared): State<Shared>) -> Json<HealthResponse> {
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    Json(HealthResponse {
        cilium: shared.status.document(false, true).await,
        system_load: load_of(&load),
        uptime: skep_duration::format_duration(shared.begun.elapsed()),
    })
}

fn load_of(text: &str) -> LoadResponse {
    let mut averages = text.split_ascii_whitespace().map(str::to_owned);
    let mut next = || averages.next().unwrap_or_default();
    LoadResponse {
        last1: next(),
        last5: next(),
        last15: next(),
    }
}

async fn status(State(shared): State<Shared>) -> Json<HealthStatusResponse> {
    Json(shared.prober.status())
}
