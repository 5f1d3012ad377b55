// SPDX-License-Identifier: Apache-2.0

//! Tables over HTTP (feature `http`): [`router`] serves those of a database to other processes.
//!
//! | path | answer |
//! |---|---|
//! | `/tables` | a JSON list of the tables |
//! | `/tables/NAME` | objects, one JSON document a line; all, or those that `index`, `key` and `match` select |
//! | `/tables/NAME/changes` | the same objects and then every change, until the reader disconnects; an empty line every 30 s as a sign of life |
//! | `/dump` | all objects of all tables: a JSON map of lists |
//!
//! `match` is `exact` (the default), `prefix` or `lower-bound`; without `index` the key is one of the primary index. A
//! key is text, as for the `db` commands.
//!
//! A line of objects is `{"revision":7,"object":{...}}`. A line of changes begins with `"change"`: `upsert`,
//! `delete` (with the last state), `relist` (drop all objects; all of them follow), or `initialized`, once, when all
//! sources of the table have delivered their first content.

mod stream;

use std::sync::Arc;

use axum::{
    Extension, Router,
    body::Body,
    extract::{Path, Query, State},
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use crate::{AnyTable, Db, DynError, Match};

/// Ends the streams of [`router`]: a server that waits for its connections before it stops adds it to the router, as
/// an [`Extension`], and cancels it.
///
/// ```
/// use statedb::{Db, http};
/// use tokio_util::sync::CancellationToken;
///
/// let stop = CancellationToken::new();
/// let router: axum::Router = http::router(&Db::new()).layer(axum::Extension(http::Stop(stop.clone())));
/// # let _ = router;
/// stop.cancel();
/// ```
#[derive(Debug, Clone, Default)]
pub struct Stop(pub CancellationToken);

/// Serves the tables of `db`, those created later included.
///
/// ```
/// let router: axum::Router = statedb::http::router(&statedb::Db::new());
/// # let _ = axum::Router::<()>::new().nest("/debug/db", router);
/// ```
pub fn router(db: &Db) -> Router {
    Router::new()
        .route("/tables", get(tables))
        .route("/tables/{table}", get(objects))
        .route("/tables/{table}/changes", get(changes))
        .route("/dump", get(dump))
        .with_state(db.clone())
}

/// Why a request cannot be answered.
#[derive(Debug, thiserror::Error)]
enum Refused {
    #[error("table \"{0}\" not found")]
    NoTable(String),
    #[error("\"{0}\" is neither exact, prefix nor lower-bound")]
    BadMatch(String),
    #[error("`index` and `match` need a `key`")]
    NoKey,
    #[error(transparent)]
    Query(#[from] DynError),
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let status = match self {
            Self::NoTable(_) => StatusCode::NOT_FOUND,
            _ => StatusCode::BAD_REQUEST,
        };
        (status, format!("{self}\n")).into_response()
    }
}

/// A table, as `/tables` lists it.
#[derive(Serialize)]
struct Overview {
    name: String,
    r#type: String,
    objects: usize,
    zombies: usize,
    revision: u64,
    indexes: Vec<&'static str>,
    pending_initializers: Vec<String>,
    change_iterators: usize,
}

async fn tables(State(db): State<Db>) -> axum::Json<Vec<Overview>> {
    let snapshot = db.read();
    let overview = |table: Arc<dyn AnyTable>| Overview {
        name: table.name().to_owned(),
        r#type: table.type_name().to_owned(),
        objects: table.objects(&snapshot),
        zombies: table.zombies(&snapshot),
        revision: table.revision(&snapshot),
        indexes: table.indexes(),
        pending_initializers: table.pending_initializers(&snapshot),
        change_iterators: table.delete_trackers(),
    };
    axum::Json(db.tables().into_iter().map(overview).collect())
}

/// Which objects of a table.
#[derive(Deserialize)]
struct Selection {
    index: Option<String>,
    key: Option<String>,
    r#match: Option<String>,
}

impl Selection {
    fn how(&self) -> Result<Match, Refused> {
        match self.r#match.as_deref() {
            None | Some("exact") => Ok(Match::Exact),
            Some("prefix") => Ok(Match::Prefix),
            Some("lower-bound") => Ok(Match::LowerBound),
            Some(other) => Err(Refused::BadMatch(other.to_owned())),
        }
    }
}

const LINES: [(header::HeaderName, &str); 1] = [(header::CONTENT_TYPE, "application/x-ndjson")];

fn find(db: &Db, name: &str) -> Result<Arc<dyn AnyTable>, Refused> {
    db.table(name).ok_or_else(|| Refused::NoTable(name.to_owned()))
}

async fn objects(
    State(db): State<Db>,
    Path(name): Path<String>,
    Query(selection): Query<Selection>,
) -> Result<impl IntoResponse, Refused> {
    let table = find(&db, &name)?;
    let snapshot = db.read();
    let (how, index) = (selection.how()?, selection.index.as_deref());
    let rows = match &selection.key {
        Some(key) => table.query(&snapshot, index, key, how)?,
        None if index.is_some() || selection.r#match.is_some() => return Err(Refused::NoKey),
        None => table.rows(&snapshot),
    };
    Ok((LINES, Body::from_stream(stream::objects(table, rows))))
}

async fn changes(
    State(db): State<Db>,
    Path(name): Path<String>,
    stop: Option<Extension<Stop>>,
) -> Result<impl IntoResponse, Refused> {
    let table = find(&db, &name)?;
    let stop = stop.map(|Extension(Stop(token))| token).unwrap_or_default();
    Ok((LINES, Body::from_stream(stream::changes(db, table, stop))))
}

async fn dump(State(db): State<Db>) -> impl IntoResponse {
    let json = [(header::CONTENT_TYPE, "application/json")];
    (json, Body::from_stream(stream::dump(db)))
}

#[cfg(test)]
mod tests;
