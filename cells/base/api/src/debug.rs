// SPDX-License-Identifier: Apache-2.0

//! `GET /v1/debug/hive` and below: the hive that runs; `/v1/debug/db` and below: its tables. For people and tools that
//! look for a fault.

use axum::{
    Router,
    extract::Query,
    http::{StatusCode, header},
    response::IntoResponse,
    routing::get,
};
use hive::{Controller, GraphFormat, GraphView, Member};
use serde::Deserialize;
use statedb::Db;

use crate::routes::Routes;

/// Which part of the graph to draw, and how.
#[derive(Deserialize)]
struct View {
    format: Option<String>,
    module: Option<String>,
    from: Option<String>,
    depth: Option<usize>,
}

/// State, tree and graph of the hive.
pub(crate) fn routes(hive: Controller) -> Member<Routes> {
    let (state, tree, graph) = (hive.clone(), hive.clone(), hive);
    let json = [(header::CONTENT_TYPE, "application/json")];
    Member(Routes::undocumented(
        Router::new()
            .route("/debug/hive", get(move || async move { (json, state.to_json()) }))
            .route("/debug/hive/tree", get(move || async move { tree.tree() }))
            .route(
                "/debug/hive/graph",
                get(move |Query(view): Query<View>| async move { draw(graph, view) }),
            ),
    ))
}

/// The tables of the hive, and their changes.
pub(crate) fn tables(db: Option<Db>) -> Member<Routes> {
    let tables = db.map(|db| statedb::http::router(&db)).unwrap_or_default();
    Member(Routes::undocumented(Router::new().nest("/debug/db", tables)))
}

fn draw(hive: Controller, view: View) -> Result<impl IntoResponse, (StatusCode, String)> {
    let format = match view.format.as_deref().map(str::parse) {
        None => GraphFormat::default(),
        Some(Ok(format)) => format,
        Some(Err(error)) => return Err((StatusCode::BAD_REQUEST, error)),
    };
    let kind = match format {
        GraphFormat::Json => "application/json",
        GraphFormat::Dot | GraphFormat::Mermaid => "text/plain; charset=utf-8",
    };
    let view = GraphView {
        format,
        module: view.module,
        from: view.from,
        depth: view.depth,
    };
    match hive.draw(&view) {
        Ok(graph) => Ok(([(header::CONTENT_TYPE, kind)], graph)),
        Err(error) => Err((StatusCode::NOT_FOUND, error.to_string())),
    }
}
