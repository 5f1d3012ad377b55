// SPDX-License-Identifier: Apache-2.0

//! Paths of the API and their OpenAPI document, merged from those of all cells.

use std::{fmt, sync::Arc};

use axum::{Router, http::header, response::Html, routing::get};
use hive::All;
use statedb::Db;
use utoipa::openapi::{InfoBuilder, OpenApi, OpenApiBuilder};
use utoipa_axum::router::OpenApiRouter;

/// What a cell adds to the API, as `Member<Routes>`: handlers, their paths below `/v1`, and what they return.
///
/// ```
/// use axum::Json;
/// use hive::{Cell, Member};
/// use skep_base_api::Routes;
/// use utoipa_axum::{router::OpenApiRouter, routes};
///
/// /// Returns the number of requests.
/// #[utoipa::path(get, path = "/count", responses((status = 200, description = "The number", body = u64)))]
/// async fn count() -> Json<u64> {
///     Json(1)
/// }
///
/// fn api() -> Member<Routes> {
///     Member(Routes::new(OpenApiRouter::new().routes(routes!(count))))
/// }
/// let cell = Cell::module("counter-api", "Counts").provide(api);
/// # let _ = cell;
/// ```
#[derive(Clone, Default)]
pub struct Routes(OpenApiRouter);

impl Routes {
    /// Routes that clients may rely on.
    #[must_use]
    pub fn new(routes: OpenApiRouter) -> Self {
        Self(routes)
    }

    /// Routes for debugging, which are not in the OpenAPI document.
    #[must_use]
    pub fn undocumented(routes: Router) -> Self {
        Self(routes.into())
    }
}

impl fmt::Debug for Routes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let paths: Vec<&String> = self.0.get_openapi().paths.paths.keys().collect();
        f.debug_tuple("Routes").field(&paths).finish()
    }
}

/// A page about the API, for browsers.
const PAGE: &str = "<!DOCTYPE html>\n<html><head><title>Skep agent</title></head><body><h1>API of the Skep agent</h1>\
                    <p>OpenAPI: <a href=\"/swagger.json\">/swagger.json</a></p></body></html>\n";

/// The OpenAPI document of the API, as JSON.
#[derive(Debug, Clone, hive::Value)]
pub struct Document(Arc<str>);

impl Document {
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

#[derive(Debug, Clone, hive::Value)]
pub(crate) struct Paths(pub(crate) Router);

/// Merges the routes of all cells.
pub(crate) fn join(routes: All<Routes>, db: Option<Db>) -> Result<(Paths, Document), serde_json::Error> {
    let info = InfoBuilder::new()
        .title("Skep agent")
        .version(env!("CARGO_PKG_VERSION"))
        .description(Some("The agent's API, on a unix socket. Errors are JSON texts."));
    let empty: OpenApi = OpenApiBuilder::new().info(info).build();
    let all = routes
        .into_vec()
        .into_iter()
        .fold(OpenApiRouter::new(), |all, Routes(some)| all.merge(some));
    let (router, document) = OpenApiRouter::with_openapi(empty)
        .nest("/v1", all)
        .split_for_parts();
    let mut text = document.to_pretty_json()?;
    text.push('\n');
    let document = Document(text.into());
    let served = document.clone();
    let json = [(header::CONTENT_TYPE, "application/json")];
    let json = get(move || async move { (json, served.as_str().to_owned()) });
    // Cilium's agent has its description at `/swagger.json`.
    let router = router
        .route("/v1/openapi.json", json.clone())
        .route("/swagger.json", json)
        .route("/v1/docs", get(async || Html(PAGE)));
    // Where Cilium's agent has its tables.
    let tables = db.map(|db| statedb::http::router(&db)).unwrap_or_default();
    let router = router.nest("/statedb", tables);
    Ok((Paths(crate::with_errors(router)), document))
}
