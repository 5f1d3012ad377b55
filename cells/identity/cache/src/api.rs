// SPDX-License-Identifier: Apache-2.0

//! `GET /v1/identity`: the security identities that the agent knows, in the form of Cilium's agent API.

use axum::{
    Json,
    body::Bytes,
    extract::{Path, State},
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Response},
};
use hive::{Cell, Member};
use skep_base_api::{BodyError, BodyModel, Routes, json_list};
use skep_base_api_types::Identity;
use skep_identity::{Label, Labels, NumericIdentity};
use statedb::{Db, Obj, Snapshot, Table};
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::table::SecurityIdentity;

/// HTTP status of Cilium's API if identities cannot be looked up.
const UNREACHABLE: u16 = 520;

hive::catalogue!(cell);

#[must_use]
pub fn cell() -> Cell {
    Cell::module("identity-api", "Security identities in the API of the agent").provide(api)
}

fn api(db: Db, table: Table<SecurityIdentity>) -> Member<Routes> {
    let routes = OpenApiRouter::new()
        .routes(routes!(list))
        .routes(routes!(get))
        .with_state(Identities { db, table });
    Member(Routes::new(routes))
}

#[derive(Clone)]
pub(crate) struct Identities {
    pub(crate) db: Db,
    pub(crate) table: Table<SecurityIdentity>,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum ApiError {
    #[error(transparent)]
    Body(#[from] BodyError),
    /// A label is not of the form `source:key=value`.
    #[error("parsing labels body from \"\" failed, because {0}")]
    Label(String),
    /// The text is no number of an identity.
    #[error("`{0}` is not an identity")]
    Number(String),
    #[error("no identity {0}")]
    NotFound(String),
    /// Whether there is such an identity is not known.
    #[error("no identity {0} is known, and {1} have not been listed yet")]
    Unlisted(String, String),
}

impl ApiError {
    fn status(&self) -> StatusCode {
        match self {
            Self::Body(_) | Self::Label(_) | Self::Number(_) => StatusCode::BAD_REQUEST,
            Self::NotFound(_) => StatusCode::NOT_FOUND,
            Self::Unlisted(..) => StatusCode::from_u16(UNREACHABLE).unwrap_or(StatusCode::BAD_GATEWAY),
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        match &self {
            Self::Body(error) => error.clone().into_response(),
            Self::Label(_) => skep_base_api::error(self.status(), &self.to_string()),
            // As Cilium's agent: without a body.
            Self::Number(_) | Self::NotFound(_) => self.status().into_response(),
            Self::Unlisted(..) => (self.status(), Json(self.to_string())).into_response(),
        }
    }
}

fn model(row: &SecurityIdentity) -> Identity {
    let mut labels = row.label_texts();
    // By key, without the source.
    labels.sort_by(|a, b| key_of(a).cmp(key_of(b)));
    Identity {
        id: row.id.get(),
        labels,
    }
}

fn key_of(label: &str) -> &str {
    let key = label.split_once(':').map_or(label, |(_, key)| key);
    key.split_once('=').map_or(key, |(key, _)| key)
}

impl Identities {
    pub(crate) fn all(&self) -> Vec<Obj<SecurityIdentity>> {
        self.table.all(&self.db.read()).cloned().collect()
    }

    /// The identities that have exactly these labels: one for each cluster.
    pub(crate) fn with_labels(&self, labels: &[String]) -> Result<Vec<Obj<SecurityIdentity>>, ApiError> {
        let parsed = labels.iter().map(|label| label.parse::<Label>());
        let parsed: Labels = parsed
            .collect::<Result<_, _>>()
            .map_err(|error| ApiError::Label(error.to_string()))?;
        let snapshot = self.db.read();
        let text = parsed.to_string();
        let rows = self.table.list(&snapshot, SecurityIdentity::BY_LABELS.key(&text));
        let rows: Vec<_> = rows.cloned().collect();
        match rows.is_empty() {
            true => Err(self.missing(&snapshot, format!("with the labels {}", labels.join(", ")))),
            false => Ok(rows),
        }
    }

    pub(crate) fn by_id(&self, text: &str) -> Result<Identity, ApiError> {
        let id: NumericIdentity = text.parse().map_err(|_| ApiError::Number(text.to_owned()))?;
        if id.get() == 0 {
            return Ok(Identity {
                id: 0,
                labels: vec!["reserved:unknown".to_owned()],
            });
        }
        let snapshot = self.db.read();
        let row = self.table.get(&snapshot, SecurityIdentity::BY_ID.key(&id.get()));
        row.map(|row| model(row))
            .ok_or_else(|| self.missing(&snapshot, id.to_string()))
    }

    /// The error for an identity that is not in a snapshot of the table.
    fn missing(&self, snapshot: &Snapshot, what: String) -> ApiError {
        let pending = self.table.pending_initializers(snapshot);
        match pending.is_empty() {
            true => ApiError::NotFound(what),
            false => ApiError::Unlisted(what, format!("those of {}", pending.join(", "))),
        }
    }
}

/// Lists all identities, or those with exactly the labels in the body.
#[utoipa::path(get, path = "/identity", responses(
    (status = 200, description = "The identities", body = [Identity]),
    (status = 400, description = "The body is not a list of labels", body = String),
    (status = 404, description = "No identity has these labels", body = String),
    (status = 520, description = "No identity with these labels, before the initial list is complete", body = String)))]
async fn list(State(identities): State<Identities>, headers: HeaderMap, body: Bytes) -> Response {
    let rows = match BodyModel::LABELS.optional::<Vec<String>>(&headers, &body) {
        Ok(None) => Ok(identities.all()),
        Ok(Some(labels)) => identities.with_labels(&labels),
        Err(error) => Err(error.into()),
    };
    match rows {
        Ok(rows) => json_list(rows, |row, out| serde_json::to_writer(out, &model(row))),
        Err(error) => error.into_response(),
    }
}

/// Returns an identity.
#[utoipa::path(get, path = "/identity/{id}", params(("id" = String, Path, description = "Id of the identity")), responses(
    (status = 200, description = "The identity", body = Identity),
    (status = 400, description = "The id is invalid", body = String),
    (status = 404, description = "No such identity", body = String),
    (status = 520, description = "No such identity, before the initial list is complete", body = String)))]
async fn get(State(identities): State<Identities>, Path(id): Path<String>) -> Response {
    match identities.by_id(&id) {
        Ok(identity) => Json(identity).into_response(),
        Err(error) => error.into_response(),
    }
}
