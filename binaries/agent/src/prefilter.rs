// SPDX-License-Identifier: Apache-2.0

//! `/v1/prefilter`: networks whose packets XDP drops. This agent has none: it answers as Cilium's without them.

use axum::{Json, http::StatusCode};
use hive::{Cell, Member};
use skep_base_api::Routes;
use utoipa_axum::{router::OpenApiRouter, routes};

hive::catalogue!(cell);

pub(crate) fn cell() -> Cell {
    Cell::module("prefilter-api", "Networks that XDP drops in the API").provide(api)
}

fn api() -> Member<Routes> {
    Member(Routes::new(
        OpenApiRouter::new().routes(routes!(get, patch, delete)),
    ))
}

type Disabled = (StatusCode, Json<&'static str>);

const DISABLED: Disabled = (
    StatusCode::INTERNAL_SERVER_ERROR,
    Json("prefilter is not enabled in daemon"),
);

/// Lists the networks.
#[utoipa::path(get, path = "/prefilter", responses((status = 500, description = "Disabled", body = String)))]
async fn get() -> Disabled {
    DISABLED
}

/// Adds networks.
#[utoipa::path(patch, path = "/prefilter", responses((status = 500, description = "Disabled", body = String)))]
async fn patch() -> Disabled {
    DISABLED
}

/// Removes networks.
#[utoipa::path(delete, path = "/prefilter", responses((status = 500, description = "Disabled", body = String)))]
async fn delete() -> Disabled {
    DISABLED
}
