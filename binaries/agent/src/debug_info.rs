// SPDX-License-Identifier: Apache-2.0

//! `GET /v1/debuginfo`: what helps to find a fault, of all cells.

use std::{collections::BTreeMap, fs};

use axum::{Extension, Json, extract::State};
use hive::{Cell, Controller, Member};
use serde_json::{Value, json};
use skep_base_api::{LocalApi, Routes};
use skep_base_api_types::DebugInfo;
use utoipa_axum::{router::OpenApiRouter, routes};

hive::catalogue!(cell);

pub(crate) fn cell() -> Cell {
    Cell::module("debug-info", "What helps to find a fault").provide(routes)
}

fn routes(hive: Controller) -> Member<Routes> {
    Member(Routes::new(
        OpenApiRouter::new().routes(routes!(debug_info)).with_state(hive),
    ))
}

/// Parts of the answer that are answers of other paths.
const PARTS: [(&str, &str); 4] = [
    ("cilium-status", "/v1/healthz"),
    ("endpoint-list", "/v1/endpoint"),
    ("policy", "/v1/policy"),
    ("service-list", "/v1/service"),
];

/// Returns what helps to find a fault.
#[utoipa::path(get, path = "/debuginfo", responses(
    (status = 200, description = "What is known", body = DebugInfo),
    (status = 500, description = "It cannot be collected", body = String)))]
async fn debug_info(State(hive): State<Controller>, Extension(api): Extension<LocalApi>) -> Json<Value> {
    let config = api.get("/v1/config").await.unwrap_or_default();
    let settings = config["status"]["daemonConfigurationMap"].as_object();
    let settings: BTreeMap<&String, &Value> = settings.into_iter().flatten().collect();
    let settings: Vec<String> = settings
        .into_iter()
        .map(|(name, value)| match value {
            Value::String(text) => format!("{name}:{text}"),
            value => format!("{name}:{value}"),
        })
        .collect();
    let file = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let release = file("/proc/sys/kernel/osrelease");
    let mut answer = json!({
        "cilium-memory-map": file("/proc/self/maps"),
        "cilium-version": env!("CARGO_PKG_VERSION"),
        "encryption": {},
        "environment-variables": settings,
        "kernel-version": release.split(|letter: char| !letter.is_ascii_digit() && letter != '.').next(),
        "subsystem": { "hive": hive.tree() },
    });
    for (part, path) in PARTS {
        if let Some(found) = api.get(path).await {
            answer[part] = found;
        }
    }
    let ipam = &answer["cilium-status"]["ipam"];
    if !ipam.is_null() {
        answer["subsystem"]["ipam"] = format!("{ipam:#}").into();
    }
    answer.sort_all_objects();
    Json(answer)
}
