// SPDX-License-Identifier: Apache-2.0

//! [`Client`] over HTTP.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http::{Method, Request, header};
use http_body_util::BodyExt;
use kube::client::Body;
use rand::Rng;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use skep_k8s_types::slim::Str;
use skep_k8s_types::{Kind, RawObject};
use tokio::sync::watch;
use tokio::time::Instant;

use super::connection::{Connection, RemoteClient, put_off, read_status, unreachable_server};
use super::lines::{Lines, event};
use crate::client::{Client, RawPage, RawWatch, ServerVersion};
use crate::error::{ApiError, Status};
use crate::event::RawEvent;
use crate::options::{
    DeleteOptions, ListOptions, Patch, ResourceVersionMatch, Subresource, WatchOptions, WriteOptions,
};

/// Default field manager of writes.
const FIELD_MANAGER: &str = "skep";

/// A query string, built a parameter at a time.
struct Query(String);

impl Query {
    fn new() -> Self {
        Self(String::new())
    }

    fn add(mut self, key: &str, value: &str) -> Self {
        if !value.is_empty() {
            self.0.push(if self.0.is_empty() { '?' } else { '&' });
            self.0.push_str(key);
            self.0.push('=');
            self.0.extend(form_urlencoded::byte_serialize(value.as_bytes()));
        }
        self
    }

    fn write_options(self, options: &WriteOptions) -> Self {
        let manager = if options.field_manager.is_empty() {
            FIELD_MANAGER
        } else {
            &options.field_manager
        };
        self.add("fieldManager", manager)
            .add("dryRun", when(options.dry_run, "All"))
    }
}

/// `value` if `asked`, else nothing: empty parameters are left out.
fn when(asked: bool, value: &'static str) -> &'static str {
    if asked { value } else { "" }
}

/// Path of a collection or an object; rejects names that would change the path.
fn path(kind: &Kind, namespace: &str, name: &str, part: Subresource) -> Result<String, ApiError> {
    for segment in [namespace, name] {
        let fine = segment
            .chars()
            .all(|character| character.is_ascii_alphanumeric() || "-._:".contains(character));
        if !fine || segment == "." || segment == ".." {
            let message = format!("{segment:?} is not a valid name");
            return Err(ApiError::Status(Status::new(400, "BadRequest", message)));
        }
    }
    let mut path = kind.path(namespace, name);
    if part == Subresource::Status {
        path.push_str("/status");
    }
    Ok(path)
}

fn name_of(object: &Value) -> Result<&str, ApiError> {
    let name = object["metadata"]["name"]
        .as_str()
        .filter(|name| !name.is_empty());
    name.ok_or_else(|| ApiError::Status(Status::new(400, "BadRequest", "object without metadata.name")))
}

#[derive(Deserialize)]
struct ListText<'a> {
    #[serde(default)]
    metadata: ListMetadata,
    #[serde(borrow, default)]
    items: Option<Vec<&'a RawValue>>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct ListMetadata {
    resource_version: Str,
    r#continue: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct VersionText {
    major: String,
    minor: String,
    #[serde(default)]
    git_version: String,
    #[serde(default)]
    platform: String,
}

impl RemoteClient {
    fn request(
        &self,
        method: Method,
        uri: &str,
        content: Option<(&str, &Value)>,
    ) -> Result<Request<Body>, ApiError> {
        let builder = self.builder(method, uri);
        let request = match content {
            None => builder.body(Body::empty()),
            Some((content_type, value)) => builder
                .header(header::CONTENT_TYPE, content_type)
                .body(Body::from(value.to_string().into_bytes())),
        };
        request.map_err(|error| ApiError::Garbled {
            request: uri.to_owned(),
            reason: error.to_string(),
        })
    }

    /// Sends a request when the rate allows and returns the body of its answer.
    async fn call(
        &self,
        method: Method,
        uri: &str,
        content: Option<(&str, &Value)>,
    ) -> Result<Bytes, ApiError> {
        let began = Instant::now();
        loop {
            let request = self.request(method.clone(), uri, content)?;
            self.admit(request.method(), uri).await;
            let result = self.whole(request).await;
            if !put_off(result.as_ref().err(), began).await {
                return result;
            }
        }
    }

    /// Reads JSON, not limited by the rate: for discovery and probes.
    pub(super) async fn read<T: for<'de> Deserialize<'de>>(&self, uri: &str) -> Result<T, ApiError> {
        let body = self.whole(self.request(Method::GET, uri, None)?).await?;
        serde_json::from_slice(&body).map_err(|error| ApiError::Garbled {
            request: format!("GET {uri}"),
            reason: error.to_string(),
        })
    }

    async fn open_watch(
        &self,
        uri: &str,
    ) -> Result<impl futures::Stream<Item = Result<RawEvent, ApiError>> + Send + use<>, ApiError> {
        let name = format!("GET {uri}");
        let request = self.request(Method::GET, uri, None)?;
        self.admit(request.method(), uri).await;
        let generation = self.inner.generation.subscribe();
        let running = self.inner.metrics.measure(request.method(), request.uri());
        let (response, connection) = self.send(request).await?;
        drop(running);
        let (head, body) = response.into_parts();
        if !head.status.is_success() {
            let body = http_body_util::Limited::new(body, 1 << 20).collect().await;
            let body = body
                .map_err(|error| unreachable_server(&connection.server, error))?
                .to_bytes();
            return Err(ApiError::Status(read_status(&head, &body, &name)));
        }
        Ok(self.events(body, connection, generation, name))
    }

    /// The events in the body of an answer, until it ends or the connection is dropped.
    fn events(
        &self,
        mut body: Body,
        connection: Arc<Connection>,
        mut generation: watch::Receiver<u64>,
        name: String,
    ) -> impl futures::Stream<Item = Result<RawEvent, ApiError>> + Send + use<> {
        let client = self.clone();
        async_stream::stream! {
            let mut lines = Lines::default();
            loop {
                let frame = tokio::select! {
                    biased;
                    _ = generation.changed() => {
                        yield Err(unreachable_server(&connection.server, "connection dropped"));
                        return;
                    }
                    frame = body.frame() => frame,
                };
                match frame {
                    Some(Ok(frame)) => {
                        client.answered(&connection);
                        if let Some(data) = frame.data_ref() {
                            lines.push(data);
                        }
                    }
                    Some(Err(error)) => {
                        client.inner.suspicious.notify_one();
                        yield Err(unreachable_server(&connection.server, error));
                        return;
                    }
                    None => {
                        if let Some(rest) = lines.rest() {
                            yield event(&rest, &name);
                        }
                        return;
                    }
                }
                loop {
                    let read = match lines.next() {
                        Ok(None) => break,
                        Ok(Some(line)) => event(&line, &name),
                        Err(_) => Err(ApiError::Garbled {
                            request: name.clone(),
                            reason: "line too long".to_owned(),
                        }),
                    };
                    let failed = read.is_err();
                    yield read;
                    if failed {
                        return;
                    }
                }
            }
        }
    }

    pub(super) async fn fetch_version(&self) -> Result<ServerVersion, ApiError> {
        let text: VersionText = self.read("/version").await?;
        // Vendors append signs to the numbers: `33+`.
        let number = |text: &str| {
            let digits = text
                .find(|character: char| !character.is_ascii_digit())
                .map_or(text, |end| &text[..end]);
            digits.parse().map_err(|_| ApiError::Garbled {
                request: "GET /version".to_owned(),
                reason: format!("`{text}` is not a version number"),
            })
        };
        Ok(ServerVersion {
            major: number(&text.major)?,
            minor: number(&text.minor)?,
            git_version: text.git_version,
            platform: text.platform,
        })
    }
}

#[async_trait]
impl Client for RemoteClient {
    fn is_enabled(&self) -> bool {
        self.target_known()
    }

    async fn recovered(&self) {
        let mut recoveries = self.inner.recoveries.subscribe();
        // The sender lives as long as this client.
        let _ = recoveries.changed().await;
    }

    async fn server_version(&self) -> Result<ServerVersion, ApiError> {
        self.fetch_version().await
    }

    async fn kinds(&self) -> Result<Vec<Kind>, ApiError> {
        self.discover().await
    }

    async fn list(&self, kind: &Kind, namespace: &str, options: &ListOptions) -> Result<RawPage, ApiError> {
        let exact = match options.resource_version_match {
            None => "",
            Some(ResourceVersionMatch::NotOlderThan) => "NotOlderThan",
            Some(ResourceVersionMatch::Exact) => "Exact",
        };
        let limit = if options.limit == 0 {
            String::new()
        } else {
            options.limit.to_string()
        };
        let query = Query::new()
            .add("labelSelector", &options.labels.to_string())
            .add("fieldSelector", &options.fields.to_string())
            .add("limit", &limit)
            .add("continue", &options.continue_token)
            .add("resourceVersion", &options.resource_version)
            .add("resourceVersionMatch", exact);
        let uri = path(kind, namespace, "", Subresource::None)? + &query.0;
        let began = Instant::now();
        let body = loop {
            // However many pages it has, a list counts as one request: they come one after the other anyway.
            if options.continue_token.is_empty() {
                self.admit(&Method::GET, &uri).await;
            }
            let result = self.whole(self.request(Method::GET, &uri, None)?).await;
            if !put_off(result.as_ref().err(), began).await {
                break result?;
            }
        };
        let list: ListText<'_> = serde_json::from_slice(&body).map_err(|error| ApiError::Garbled {
            request: format!("GET {uri}"),
            reason: error.to_string(),
        })?;
        let items = list.items.unwrap_or_default();
        Ok(RawPage {
            items: items
                .iter()
                .map(|item| RawObject::from_json(body.slice_ref(item.get().as_bytes())))
                .collect(),
            resource_version: list.metadata.resource_version,
            continue_token: list.metadata.r#continue.unwrap_or_default(),
        })
    }

    async fn watch(
        &self,
        kind: &Kind,
        namespace: &str,
        options: &WatchOptions,
    ) -> Result<RawWatch, ApiError> {
        // Spread over five minutes, so that watches of many clients do not end together.
        let timeout = options
            .timeout
            .unwrap_or_else(|| Duration::from_secs(rand::rng().random_range(300..600)))
            .as_secs();
        let query = Query::new()
            .add("watch", "true")
            .add("labelSelector", &options.labels.to_string())
            .add("fieldSelector", &options.fields.to_string())
            .add("resourceVersion", &options.resource_version)
            .add(
                "resourceVersionMatch",
                when(options.initial_events, "NotOlderThan"),
            )
            .add("sendInitialEvents", when(options.initial_events, "true"))
            .add("allowWatchBookmarks", when(options.bookmarks, "true"))
            .add("timeoutSeconds", &timeout.max(1).to_string());
        let uri = path(kind, namespace, "", Subresource::None)? + &query.0;
        let began = Instant::now();
        loop {
            let error = match self.open_watch(&uri).await {
                Ok(events) => return Ok(Box::pin(events)),
                Err(error) => error,
            };
            if !put_off(Some(&error), began).await {
                return Err(error);
            }
        }
    }

    async fn get(&self, kind: &Kind, namespace: &str, name: &str) -> Result<RawObject, ApiError> {
        let uri = path(kind, namespace, name, Subresource::None)?;
        self.call(Method::GET, &uri, None).await.map(RawObject::from_json)
    }

    async fn create(
        &self,
        kind: &Kind,
        namespace: &str,
        object: Value,
        options: &WriteOptions,
    ) -> Result<RawObject, ApiError> {
        let uri = path(kind, namespace, "", Subresource::None)? + &Query::new().write_options(options).0;
        self.call(Method::POST, &uri, Some(("application/json", &object)))
            .await
            .map(RawObject::from_json)
    }

    async fn update(
        &self,
        kind: &Kind,
        namespace: &str,
        subresource: Subresource,
        object: Value,
        options: &WriteOptions,
    ) -> Result<RawObject, ApiError> {
        let uri =
            path(kind, namespace, name_of(&object)?, subresource)? + &Query::new().write_options(options).0;
        self.call(Method::PUT, &uri, Some(("application/json", &object)))
            .await
            .map(RawObject::from_json)
    }

    async fn patch(
        &self,
        kind: &Kind,
        namespace: &str,
        name: &str,
        subresource: Subresource,
        patch: &Patch,
        options: &WriteOptions,
    ) -> Result<RawObject, ApiError> {
        let query = Query::new()
            .write_options(options)
            .add("force", when(options.force, "true"));
        let uri = path(kind, namespace, name, subresource)? + &query.0;
        self.call(Method::PATCH, &uri, Some((patch.content_type(), patch.body())))
            .await
            .map(RawObject::from_json)
    }

    async fn delete(
        &self,
        kind: &Kind,
        namespace: &str,
        name: &str,
        options: &DeleteOptions,
    ) -> Result<(), ApiError> {
        let uri = path(kind, namespace, name, Subresource::None)?;
        let mut body = json!({"apiVersion": "v1", "kind": "DeleteOptions"});
        if !options.propagation.is_empty() {
            body["propagationPolicy"] = options.propagation.as_str().into();
        }
        if !options.preconditions.uid.is_empty() {
            body["preconditions"]["uid"] = options.preconditions.uid.as_str().into();
        }
        if !options.preconditions.resource_version.is_empty() {
            body["preconditions"]["resourceVersion"] = options.preconditions.resource_version.as_str().into();
        }
        if let Some(grace) = options.grace_period {
            body["gracePeriodSeconds"] = grace.as_secs().into();
        }
        self.call(Method::DELETE, &uri, Some(("application/json", &body)))
            .await
            .map(drop)
    }
}
