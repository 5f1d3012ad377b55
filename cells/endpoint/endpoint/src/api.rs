// SPDX-License-Identifier: Apache-2.0

//! `/v1/endpoint`: endpoints are created, shown and deleted, in the form of Cilium's agent API.
//!
//! Requests that change something wait for the endpoints of the run before and for the packet programs: 503 if they are not
//! there in time. Then they, and those that read, wait for their limiter (`api-rate-limit`): 429 after its longest wait. A
//! deletion of what does not exist does not wait: runtimes repeat them. Errors are texts; those of bodies are objects.

mod body;
mod controllers;
mod creations;
mod limits;
mod model;
mod request;
#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, net::IpAddr, sync::Arc, time::Duration};

use axum::{
    Json,
    body::Bytes,
    extract::{Path, State},
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Response},
};
use hive::{Cell, Cfg, Member, Params};
use skep_base_api::{BodyError, BodyModel, Routes, json_list};
use skep_base_api_types::{
    Endpoint as Model, EndpointBatchDeleteRequest, EndpointChangeRequest, EndpointConfigurationSpec,
    EndpointConfigurationStatus, EndpointHealth, EndpointStatusChange, Identity, IdentityEndpoints,
    LabelConfiguration, LabelConfigurationSpec,
};
use skep_base_limiter::{Limiter, LimiterMetrics, NotAdmitted};
use skep_datapath_hooks::EndpointHooks;
use skep_endpoint_ipam::Ipam;
use skep_identity::{Label, Labels, NumericIdentity};
use skep_identity_allocator::Allocator;
use skep_identity_cache::SecurityIdentity;
use skep_policy_repository::Repository;
use statedb::{Obj, Table};
use tokio::time::timeout;
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{CreateError, Endpoint, Endpoints, Identifier, MetadataResolver, WaitError};
use creations::{Begun, Creations};
use limits::Limiters;

pub use limits::Config;

hive::catalogue!(cell);

/// How long a request waits for the start of the agent.
const START: Duration = Duration::from_secs(20);
/// How long a request waits for an endpoint to become ready, or to be gone.
const CHANGE: Duration = Duration::from_secs(30);

#[must_use]
pub fn cell() -> Cell {
    Cell::module("endpoint-api", "Endpoints in the API of the agent")
        .config::<Config>()
        .provide(api)
        .provide(controllers::probe)
}

#[derive(Clone)]
pub(crate) struct Api {
    endpoints: Endpoints,
    metadata: MetadataResolver,
    /// Without an allocator all endpoints are `reserved:init`.
    has_allocator: bool,
    ipam: Option<Ipam>,
    hooks: Arc<dyn EndpointHooks>,
    identities: Table<SecurityIdentity>,
    policies: Option<Repository>,
    limiters: Arc<Limiters>,
    creations: Creations,
}

#[derive(Params)]
struct ApiParams {
    config: Cfg<Config>,
    endpoints: Endpoints,
    metadata: MetadataResolver,
    allocator: Option<Allocator>,
    ipam: Option<Ipam>,
    hooks: Arc<dyn EndpointHooks>,
    identities: Table<SecurityIdentity>,
    policies: Option<Repository>,
    metrics: Option<Arc<LimiterMetrics>>,
}

fn api(params: ApiParams) -> Member<Routes> {
    let routes = OpenApiRouter::new()
        .routes(routes!(list, delete_container))
        .routes(routes!(get, create, change, delete))
        .routes(routes!(configuration, configure))
        .routes(routes!(health))
        .routes(routes!(labels, change_labels))
        .routes(routes!(log))
        .routes(routes!(identities))
        .with_state(Api {
            endpoints: params.endpoints,
            metadata: params.metadata,
            has_allocator: params.allocator.is_some(),
            ipam: params.ipam,
            hooks: params.hooks,
            identities: params.identities,
            policies: params.policies,
            limiters: Arc::new(Limiters::new(&params.config, params.metrics)),
            creations: Creations::default(),
        });
    Member(Routes::new(routes))
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum ApiError {
    #[error(transparent)]
    Body(#[from] BodyError),
    #[error("{0}")]
    Invalid(String),
    /// The text may be empty.
    #[error("{0}")]
    NotFound(String),
    #[error(transparent)]
    NotAdmitted(#[from] NotAdmitted),
    #[error("api not ready: {0}")]
    Starting(&'static str),
    #[error("{0}")]
    Failed(String),
    #[error("{failed} of {total} endpoints not deleted: {cause}")]
    Incomplete {
        failed: usize,
        total: usize,
        cause: String,
    },
}

impl ApiError {
    fn status(&self) -> StatusCode {
        match self {
            Self::Body(_) | Self::Invalid(_) => StatusCode::BAD_REQUEST,
            Self::NotFound(_) => StatusCode::NOT_FOUND,
            Self::NotAdmitted(_) => StatusCode::TOO_MANY_REQUESTS,
            Self::Starting(_) => StatusCode::SERVICE_UNAVAILABLE,
            Self::Failed(_) => StatusCode::INTERNAL_SERVER_ERROR,
            Self::Incomplete { .. } => StatusCode::PARTIAL_CONTENT,
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let status = self.status();
        match self {
            // Clients of this status read a number.
            Self::Incomplete { failed, .. } => {
                tracing::warn!(error = %self, "Cannot delete endpoints");
                (status, Json(failed)).into_response()
            }
            Self::NotFound(text) if text.is_empty() => status.into_response(),
            Self::Body(error) => error.into_response(),
            _ => (status, Json(self.to_string())).into_response(),
        }
    }
}

impl From<statedb::Error> for ApiError {
    fn from(error: statedb::Error) -> Self {
        Self::Failed(hive::error_chain(&error))
    }
}

impl From<CreateError> for ApiError {
    fn from(error: CreateError) -> Self {
        match error {
            CreateError::Exhausted | CreateError::Table(_) => Self::Failed(hive::error_chain(&error)),
            error => Self::Invalid(error.to_string()),
        }
    }
}

impl Api {
    /// The endpoints of a name; none is an error with this text.
    fn find(&self, name: &str, missing: &str) -> Result<Vec<Obj<Endpoint>>, ApiError> {
        let identifier: Identifier = name
            .parse()
            .map_err(|error: crate::IdentifierError| ApiError::Invalid(error.to_string()))?;
        let found = self.endpoints.find(&self.endpoints.db().read(), &identifier);
        match found.is_empty() {
            true => Err(ApiError::NotFound(missing.to_owned())),
            false => Ok(found),
        }
    }

    /// The endpoint of a name; the one with the lowest id if there are several.
    fn find_one(&self, name: &str, missing: &str) -> Result<Obj<Endpoint>, ApiError> {
        let first = self.find(name, missing)?.into_iter().next();
        first.ok_or_else(|| ApiError::NotFound(missing.to_owned()))
    }

    /// Part of an endpoint, for those that read.
    async fn read<T>(&self, name: &str, part: impl FnOnce(&Endpoint) -> T) -> Result<Json<T>, ApiError> {
        limited(&self.limiters.get, async {
            Ok(Json(part(&*self.find_one(name, "")?)))
        })
        .await
    }

    async fn restored(&self) -> Result<(), ApiError> {
        let restored = timeout(START, self.endpoints.restored()).await;
        restored.map_err(|_| ApiError::Starting("endpoints are not restored yet"))
    }

    async fn accepting(&self) -> Result<(), ApiError> {
        let accepting = timeout(START, self.endpoints.accepting()).await;
        accepting.map_err(|_| ApiError::Starting("endpoints are not restored yet"))?;
        let loaded = timeout(START, self.hooks.loaded()).await;
        loaded.map_err(|_| ApiError::Starting("the packet programs are not loaded yet"))
    }

    /// Changes an endpoint, and waits until it is written.
    async fn change(&self, name: &str, body: &EndpointChangeRequest) -> Result<(), ApiError> {
        let row = self.find_one(name, "")?;
        let change = request::spec(body)?;
        if !self
            .endpoints
            .update(row.id, &change, |spec| self.metadata.requested(&spec.labels))?
        {
            return Ok(());
        }
        match timeout(CHANGE, self.endpoints.wait_ready(row.id)).await {
            Ok(Ok(_)) => Ok(()),
            _ => Err(ApiError::Failed(format!(
                "error while regenerating endpoint. For more info run: 'cilium endpoint get {}'",
                row.id
            ))),
        }
    }

    fn change_labels(&self, name: &str, spec: &LabelConfigurationSpec) -> Result<(), ApiError> {
        let row = self.find_one(name, "")?;
        if row.is_host {
            let text = "endpoint may not be associated reserved labels";
            return Err(ApiError::Invalid(text.to_owned()));
        }
        let wanted = match request::labels(&spec.user) {
            Ok(labels) => labels,
            Err(ApiError::Invalid(text)) if text.starts_with("not allowed to add reserved") => {
                return Err(ApiError::Failed(text.replacen("not", "Not", 1)));
            }
            Err(error) => return Err(error),
        };
        self.endpoints.set_user_labels(row.id, |labels| {
            // Of the orchestration's labels those stay that are not overwritten.
            labels.custom = wanted;
        })?;
        Ok(())
    }

    async fn create(&self, body: EndpointChangeRequest) -> Result<Obj<Endpoint>, ApiError> {
        self.accepting().await?;
        limited(&self.limiters.create, self.create_admitted(&body)).await
    }

    async fn create_admitted(&self, body: &EndpointChangeRequest) -> Result<Obj<Endpoint>, ApiError> {
        let wanted = request::wanted_id(body);
        let spec = request::spec(body)?;
        self.endpoints.check(&spec, wanted)?;
        let requested = self.metadata.requested(&spec.labels);
        if !spec.labels.is_empty() && requested.identity.is_empty() {
            return Err(ApiError::Invalid("no valid labels provided".to_owned()));
        }
        let creation = self.creations.begin(&spec);
        let created = async {
            let metadata = self.metadata.wait(&spec).await;
            let identity = (!self.has_allocator).then_some(NumericIdentity::INIT);
            let row = self
                .endpoints
                .add(spec, metadata, wanted, identity, request::phase(body))?;
            tracing::info!(
                endpoint = row.id,
                interface = row.spec.interface,
                pod = row.spec.pod_name().unwrap_or_default(),
                "Created endpoint"
            );
            let begun = Begun::new(&self.endpoints, row.id);
            match self.complete(&row, body).await {
                Ok(row) => {
                    begun.complete();
                    Ok(row)
                }
                Err(error) => {
                    drop(begun);
                    _ = timeout(CHANGE, self.endpoints.wait_gone(row.id)).await;
                    Err(error)
                }
            }
        };
        tokio::select! {
            created = created => created,
            () = creation.cancelled() => Err(ApiError::Failed(
                "request to create endpoint was canceled by a newer one for the same pod".to_owned(),
            )),
        }
    }

    /// Waits for what a request wants of a new endpoint.
    async fn complete(
        &self,
        row: &Endpoint,
        body: &EndpointChangeRequest,
    ) -> Result<Obj<Endpoint>, ApiError> {
        let work = async {
            let row = self.endpoints.wait_identity(row.id).await?;
            match body.sync_build_endpoint {
                true => self.endpoints.wait_ready(row.id).await,
                false => Ok(row),
            }
        };
        let row = match timeout(CHANGE, work).await {
            Ok(result) => result.map_err(|error| ApiError::Failed(error.to_string()))?,
            Err(_) => {
                let text = format!("endpoint {} is not ready after {CHANGE:?}", row.id);
                return Err(ApiError::Failed(text));
            }
        };
        let addressing = &body.addressing;
        let timers = [
            (
                row.spec.ipv6.map(IpAddr::from),
                &addressing.ipv6_pool_name,
                &addressing.ipv6_expiration_uuid,
            ),
            (
                row.spec.ipv4.map(IpAddr::from),
                &addressing.ipv4_pool_name,
                &addressing.ipv4_expiration_uuid,
            ),
        ];
        let Some(ipam) = &self.ipam else {
            return Ok(row);
        };
        for (ip, pool, uuid) in timers {
            if let Some(ip) = ip.filter(|_| !uuid.is_empty()) {
                let stopped = ipam.stop_expiration(ip, pool, uuid);
                stopped.map_err(|error| ApiError::Failed(hive::error_chain(&error)))?;
            }
        }
        Ok(row)
    }

    async fn delete(&self, rows: Vec<Obj<Endpoint>>) -> Result<(), ApiError> {
        limited(&self.limiters.delete, self.delete_admitted(rows)).await
    }

    async fn delete_admitted(&self, rows: Vec<Obj<Endpoint>>) -> Result<(), ApiError> {
        if rows.iter().any(|row| row.is_host) {
            return Err(ApiError::Invalid(
                "the host endpoint cannot be deleted".to_owned(),
            ));
        }
        for row in &rows {
            self.endpoints.disconnect(row.id)?;
        }
        let mut failures = Vec::new();
        for row in &rows {
            let cause = match timeout(CHANGE, self.endpoints.wait_gone(row.id)).await {
                Ok(Ok(())) => continue,
                Ok(Err(WaitError::Failed { cause, .. })) => cause,
                Ok(Err(error @ WaitError::Gone { .. })) => error.to_string(),
                Err(_) => format!("endpoint {} is not gone after {CHANGE:?}", row.id),
            };
            failures.push(cause);
        }
        match failures.first() {
            None => Ok(()),
            Some(cause) => Err(ApiError::Incomplete {
                failed: failures.len(),
                total: rows.len(),
                cause: cause.clone(),
            }),
        }
    }
}

/// Does what a limiter admits.
async fn limited<T>(
    limiter: &Limiter,
    work: impl Future<Output = Result<T, ApiError>>,
) -> Result<T, ApiError> {
    let request = limiter.acquire().await?;
    let result = work.await;
    request.end(result.is_ok());
    result
}

/// Whether an endpoint has all of these labels. Those without source match nothing.
fn has_labels(row: &Endpoint, labels: &Labels) -> bool {
    let own = &row.identity_labels;
    labels.iter().all(|label| own.get(label.key()) == Some(label))
}

/// Lists endpoints, all or those with some labels.
#[utoipa::path(get, path = "/endpoint", request_body = Vec<String>, responses(
    (status = 200, description = "The endpoints", body = [Model]),
    (status = 400, description = "The labels are invalid", body = String),
    (status = 404, description = "No endpoint has the labels"),
    (status = 429, description = "Rate limit exceeded", body = String)))]
async fn list(State(api): State<Api>, headers: HeaderMap, body: Bytes) -> Result<Response, ApiError> {
    let texts: Vec<String> = BodyModel::LABELS.optional(&headers, &body)?.unwrap_or_default();
    let labels: Result<Labels, _> = texts.iter().map(|text| text.parse::<Label>()).collect();
    let labels = labels.map_err(|error| ApiError::Invalid(hive::error_chain(&error)))?;
    limited(&api.limiters.list, async {
        let snapshot = api.endpoints.db().read();
        let table = api.endpoints.table();
        let rows = table.all(&snapshot).filter(|row| has_labels(row, &labels));
        let rows: Vec<Obj<Endpoint>> = rows.cloned().collect();
        if rows.is_empty() && !labels.is_empty() {
            return Err(ApiError::NotFound(String::new()));
        }
        let policies = api.policies.clone();
        Ok(json_list(rows, move |row, out| {
            serde_json::to_writer(out, &model::endpoint(row, policies.as_ref()))
        }))
    })
    .await
}

/// Deletes the endpoints of a container.
#[utoipa::path(delete, path = "/endpoint", request_body = EndpointBatchDeleteRequest, responses(
    (status = 200, description = "All endpoints are deleted"),
    (status = 206, description = "Number of endpoints that could not be deleted", body = usize),
    (status = 400, description = "The container id is missing", body = String),
    (status = 404, description = "The container has no endpoint", body = String),
    (status = 429, description = "Rate limit exceeded", body = String),
    (status = 503, description = "The agent is starting", body = String)))]
async fn delete_container(State(api): State<Api>, headers: HeaderMap, body: Bytes) -> Result<(), ApiError> {
    let body: EndpointBatchDeleteRequest = body::DELETION.required(&headers, &body)?;
    if body.container_id.is_empty() {
        return Err(ApiError::Invalid("invalid container id".to_owned()));
    }
    api.restored().await?;
    let rows = api.find(
        &format!("container-id:{}", body.container_id),
        "endpoints not found",
    )?;
    api.delete(rows).await
}

/// Returns an endpoint.
#[utoipa::path(get, path = "/endpoint/{id}", params(
    ("id" = String, Path, description = "Id of the endpoint, or a prefixed name such as pod-name:<namespace>/<name>")), responses(
    (status = 200, description = "The endpoint", body = Model),
    (status = 400, description = "The name is invalid", body = String),
    (status = 404, description = "No such endpoint"),
    (status = 429, description = "Rate limit exceeded", body = String)))]
async fn get(State(api): State<Api>, Path(id): Path<String>) -> Result<Json<Model>, ApiError> {
    let policies = api.policies.as_ref();
    api.read(&id, |row| model::endpoint(row, policies)).await
}

/// Creates an endpoint.
#[utoipa::path(put, path = "/endpoint/{id}", params(
    ("id" = String, Path, description = "Ignored: the id of the body counts")),
    request_body = EndpointChangeRequest, responses(
    (status = 201, description = "The endpoint", body = Model),
    (status = 400, description = "The endpoint is invalid or in conflict with another one", body = String),
    (status = 422, description = "The body is missing or incomplete"),
    (status = 429, description = "Rate limit exceeded", body = String),
    (status = 500, description = "The endpoint did not become ready and is deleted", body = String),
    (status = 503, description = "The agent is starting", body = String)))]
async fn create(
    State(api): State<Api>,
    Path(_): Path<String>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<(StatusCode, Json<Model>), ApiError> {
    let body: EndpointChangeRequest = body::ENDPOINT.required(&headers, &body)?;
    body::check_state(&body.state)?;
    let row = api.create(body).await?;
    Ok((
        StatusCode::CREATED,
        Json(model::endpoint(&row, api.policies.as_ref())),
    ))
}

/// Changes an endpoint: what the body has.
#[utoipa::path(patch, path = "/endpoint/{id}", params(
    ("id" = String, Path, description = "Id of the endpoint, or a prefixed name")),
    request_body = EndpointChangeRequest, responses(
    (status = 200, description = "The endpoint is changed"),
    (status = 400, description = "The change is invalid or in conflict with another endpoint", body = String),
    (status = 404, description = "No such endpoint"),
    (status = 422, description = "The body is missing or incomplete"),
    (status = 429, description = "Rate limit exceeded", body = String),
    (status = 500, description = "The endpoint is not ready", body = String),
    (status = 503, description = "The agent is starting", body = String)))]
async fn change(
    State(api): State<Api>,
    Path(id): Path<String>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<(), ApiError> {
    let body: EndpointChangeRequest = body::ENDPOINT.required(&headers, &body)?;
    body::check_state(&body.state)?;
    api.accepting().await?;
    limited(&api.limiters.patch, api.change(&id, &body)).await
}

/// Deletes an endpoint.
#[utoipa::path(delete, path = "/endpoint/{id}", params(
    ("id" = String, Path, description = "Id of the endpoint, or a prefixed name such as container-id:<id>")), responses(
    (status = 200, description = "The endpoint is deleted"),
    (status = 206, description = "Number of endpoints that could not be deleted", body = usize),
    (status = 400, description = "The name is invalid", body = String),
    (status = 404, description = "No such endpoint", body = String),
    (status = 429, description = "Rate limit exceeded", body = String),
    (status = 503, description = "The agent is starting", body = String)))]
async fn delete(State(api): State<Api>, Path(id): Path<String>) -> Result<(), ApiError> {
    api.restored().await?;
    let rows = api.find(&id, "endpoint not found")?;
    api.delete(rows).await
}

/// Returns the options of an endpoint.
#[utoipa::path(get, path = "/endpoint/{id}/config", params(
    ("id" = String, Path, description = "Id of the endpoint, or a prefixed name")), responses(
    (status = 200, description = "Configuration of the endpoint", body = EndpointConfigurationStatus),
    (status = 400, description = "The name is invalid", body = String),
    (status = 404, description = "No such endpoint"),
    (status = 429, description = "Rate limit exceeded", body = String)))]
async fn configuration(
    State(api): State<Api>,
    Path(id): Path<String>,
) -> Result<Json<EndpointConfigurationStatus>, ApiError> {
    api.read(&id, |row| EndpointConfigurationStatus {
        realized: model::configuration(row),
        ..EndpointConfigurationStatus::default()
    })
    .await
}

/// Changes options of an endpoint.
#[utoipa::path(patch, path = "/endpoint/{id}/config", params(
    ("id" = String, Path, description = "Id of the endpoint, or a prefixed name")),
    request_body = EndpointConfigurationSpec, responses(
    (status = 200, description = "The options are changed"),
    (status = 400, description = "An option is invalid", body = String),
    (status = 404, description = "No such endpoint", body = String),
    (status = 422, description = "The body is missing"),
    (status = 429, description = "Rate limit exceeded", body = String),
    (status = 503, description = "The agent is starting", body = String)))]
async fn configure(
    State(api): State<Api>,
    Path(id): Path<String>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<(), ApiError> {
    let body: EndpointConfigurationSpec = body::CONFIGURATION.required(&headers, &body)?;
    api.restored().await?;
    limited(&api.limiters.patch, async {
        let row = api.find_one(&id, &format!("endpoint {id} not found"))?;
        let options = row.options.with(&body.options);
        let options = options.map_err(|error| ApiError::Invalid(error.to_string()))?;
        api.endpoints.set_options(row.id, options)?;
        Ok(())
    })
    .await
}

/// Returns the health of an endpoint.
#[utoipa::path(get, path = "/endpoint/{id}/healthz", params(
    ("id" = String, Path, description = "Id of the endpoint, or a prefixed name")), responses(
    (status = 200, description = "Health of the endpoint", body = EndpointHealth),
    (status = 400, description = "The name is invalid", body = String),
    (status = 404, description = "No such endpoint"),
    (status = 429, description = "Rate limit exceeded", body = String)))]
async fn health(State(api): State<Api>, Path(id): Path<String>) -> Result<Json<EndpointHealth>, ApiError> {
    api.read(&id, model::health).await
}

/// Returns the labels of an endpoint.
#[utoipa::path(get, path = "/endpoint/{id}/labels", params(
    ("id" = String, Path, description = "Id of the endpoint, or a prefixed name")), responses(
    (status = 200, description = "Labels of the endpoint", body = LabelConfiguration),
    (status = 400, description = "The name is invalid", body = String),
    (status = 404, description = "No such endpoint"),
    (status = 429, description = "Rate limit exceeded", body = String)))]
async fn labels(
    State(api): State<Api>,
    Path(id): Path<String>,
) -> Result<Json<LabelConfiguration>, ApiError> {
    api.read(&id, |row| LabelConfiguration {
        spec: model::user_labels(row),
        status: model::labels(row),
    })
    .await
}

/// Replaces the user labels of an endpoint.
#[utoipa::path(patch, path = "/endpoint/{id}/labels", params(
    ("id" = String, Path, description = "Id of the endpoint, or a prefixed name")),
    request_body = LabelConfigurationSpec, responses(
    (status = 200, description = "The labels are changed"),
    (status = 400, description = "The name is invalid", body = String),
    (status = 404, description = "No such endpoint"),
    (status = 422, description = "The body is missing"),
    (status = 429, description = "Rate limit exceeded", body = String),
    (status = 500, description = "A label is reserved", body = String),
    (status = 503, description = "The agent is starting", body = String)))]
async fn change_labels(
    State(api): State<Api>,
    Path(id): Path<String>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<(), ApiError> {
    let body: LabelConfigurationSpec = body::LABEL_CONFIGURATION.required(&headers, &body)?;
    api.restored().await?;
    limited(&api.limiters.patch, async { api.change_labels(&id, &body) }).await
}

/// Returns the events of an endpoint, the last one first.
#[utoipa::path(get, path = "/endpoint/{id}/log", params(
    ("id" = String, Path, description = "Id of the endpoint, or a prefixed name")), responses(
    (status = 200, description = "The events", body = [EndpointStatusChange]),
    (status = 400, description = "The name is invalid", body = String),
    (status = 404, description = "No such endpoint"),
    (status = 429, description = "Rate limit exceeded", body = String)))]
async fn log(
    State(api): State<Api>,
    Path(id): Path<String>,
) -> Result<Json<Vec<EndpointStatusChange>>, ApiError> {
    api.read(&id, |row| {
        row.log.entries().iter().map(model::log_entry).collect()
    })
    .await
}

/// Lists the identities of local endpoints with reference counts.
#[utoipa::path(get, path = "/identity/endpoints", responses(
    (status = 200, description = "The identities", body = [IdentityEndpoints])))]
async fn identities(State(api): State<Api>) -> Json<Vec<IdentityEndpoints>> {
    let snapshot = api.endpoints.db().read();
    let mut counts: BTreeMap<NumericIdentity, usize> = BTreeMap::new();
    let mut host = None;
    for row in api.endpoints.table().all(&snapshot) {
        let Some(id) = row.identity else { continue };
        *counts.entry(id).or_default() += 1;
        // Its labels are those of the Node; the identity is reserved.
        if id == NumericIdentity::HOST {
            host = Some(row.identity_labels.iter().map(ToString::to_string).collect());
        }
    }
    let mut identity = |id: NumericIdentity| {
        if let Some(labels) = host.take_if(|_| id == NumericIdentity::HOST) {
            return Identity { id: id.get(), labels };
        }
        let row = api
            .identities
            .get(&snapshot, SecurityIdentity::BY_ID.key(&id.get()));
        Identity {
            id: id.get(),
            labels: row.map(|row| row.label_texts()).unwrap_or_default(),
        }
    };
    let counted = counts.into_iter().map(|(id, ref_count)| IdentityEndpoints {
        identity: identity(id),
        ref_count,
    });
    Json(counted.collect())
}
