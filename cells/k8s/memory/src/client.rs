// SPDX-License-Identifier: Apache-2.0

//! The client that talks to an [`ApiServer`] in the same process.

use std::sync::Arc;

use async_trait::async_trait;
use futures::StreamExt;
use futures::stream;
use serde_json::Value;
use skep_k8s_client::{
    Change, Client, RawEvent, RawPage, RawWatch, ResourceVersionMatch, ServerVersion, Status,
};
use skep_k8s_types::{Kind, RawObject};

use crate::error::ApiError;
use crate::gvr::Gvr;
use crate::object;
use crate::patch::Patch;
use crate::selector::LabelSelector;
use crate::server::{
    ApiServer, DeleteOptions, ListOptions, Propagation, Subresource, VersionMatch, WatchKind, WriteOptions,
};

/// A [`Client`] without a network. Objects are shared with the server, not copied.
#[derive(Clone)]
pub struct InProcessClient {
    api: ApiServer,
    version: ServerVersion,
    watches_by_label: bool,
}

impl InProcessClient {
    /// A client of `api`, which says that it has this version.
    pub fn new(api: ApiServer, version: ServerVersion) -> Self {
        InProcessClient {
            api,
            version,
            watches_by_label: true,
        }
    }

    /// Lets watches deliver objects whatever their labels, as fake clients written in Go do; lists still select.
    #[must_use]
    pub(crate) fn watching_all_labels(mut self) -> Self {
        self.watches_by_label = false;
        self
    }

    /// The server behind it.
    pub fn server(&self) -> &ApiServer {
        &self.api
    }
}

/// The version that scripts expect.
pub(crate) fn script_version() -> ServerVersion {
    ServerVersion {
        major: 1,
        minor: 26,
        git_version: "v1.26.0".to_owned(),
        platform: String::new(),
    }
}

fn gvr(kind: &Kind) -> Gvr {
    Gvr::new(&kind.group, &kind.version, &kind.plural)
}

/// The service account whose tokens this kind is: `serviceaccounts/<name>/token`.
fn token_of(kind: &Kind) -> Option<&str> {
    let name = kind
        .plural
        .strip_prefix("serviceaccounts/")?
        .strip_suffix("/token")?;
    kind.group.is_empty().then_some(name)
}

fn scope(kind: &Kind, namespace: &str) -> Option<String> {
    (kind.namespaced && !namespace.is_empty()).then(|| namespace.to_owned())
}

fn failed(error: ApiError) -> skep_k8s_client::ApiError {
    skep_k8s_client::ApiError::Status(Status::new(error.code, error.reason, error.message))
}

fn version(text: &str) -> Result<Option<u64>, ApiError> {
    match text {
        "" => Ok(None),
        text => text.parse().map(Some).map_err(|_| {
            ApiError::bad_request(format!("invalid resource version {text:?}: it is not a number"))
        }),
    }
}

fn part(subresource: skep_k8s_client::Subresource) -> Subresource {
    match subresource {
        skep_k8s_client::Subresource::None => Subresource::None,
        skep_k8s_client::Subresource::Status => Subresource::Status,
    }
}

fn write_options(options: &skep_k8s_client::WriteOptions) -> WriteOptions {
    WriteOptions {
        field_manager: options.field_manager.clone(),
        dry_run: options.dry_run,
        force: options.force,
        ..WriteOptions::default()
    }
}

fn list_options(options: &skep_k8s_client::ListOptions) -> Result<ListOptions, ApiError> {
    Ok(ListOptions {
        limit: usize::try_from(options.limit).unwrap_or(usize::MAX),
        continue_token: options.continue_token.clone(),
        resource_version: version(&options.resource_version)?,
        version_match: options.resource_version_match.map(|m| match m {
            ResourceVersionMatch::NotOlderThan => VersionMatch::NotOlderThan,
            ResourceVersionMatch::Exact => VersionMatch::Exact,
        }),
        labels: options.labels.clone().into(),
        fields: options.fields.clone().into(),
        ..ListOptions::default()
    })
}

fn watch_options(options: &skep_k8s_client::WatchOptions) -> Result<ListOptions, ApiError> {
    Ok(ListOptions {
        resource_version: version(&options.resource_version)?,
        bookmarks: options.bookmarks,
        send_initial_events: options.initial_events,
        version_match: options.initial_events.then_some(VersionMatch::NotOlderThan),
        timeout: options.timeout,
        labels: options.labels.clone().into(),
        fields: options.fields.clone().into(),
        ..ListOptions::default()
    })
}

fn raw(object: Arc<Value>) -> RawObject {
    RawObject::from_value(object)
}

#[async_trait]
impl Client for InProcessClient {
    fn is_enabled(&self) -> bool {
        true
    }

    async fn server_version(&self) -> Result<ServerVersion, skep_k8s_client::ApiError> {
        Ok(self.version.clone())
    }

    async fn kinds(&self) -> Result<Vec<Kind>, skep_k8s_client::ApiError> {
        let kinds = self.api.registry().all();
        Ok(kinds
            .iter()
            .map(|kind| Kind {
                group: kind.gvr.group.as_str().into(),
                version: kind.gvr.version.as_str().into(),
                kind: kind.kind.as_str().into(),
                plural: kind.gvr.resource.as_str().into(),
                namespaced: kind.namespaced,
            })
            .collect())
    }

    async fn list(
        &self,
        kind: &Kind,
        namespace: &str,
        options: &skep_k8s_client::ListOptions,
    ) -> Result<RawPage, skep_k8s_client::ApiError> {
        let options = list_options(options).map_err(failed)?;
        let namespace = scope(kind, namespace);
        let list = self
            .api
            .list(&gvr(kind), namespace.as_deref(), &options)
            .map_err(failed)?;
        Ok(RawPage {
            items: list.items.into_iter().map(raw).collect(),
            resource_version: list.resource_version.to_string().as_str().into(),
            continue_token: list.continue_token,
        })
    }

    async fn watch(
        &self,
        kind: &Kind,
        namespace: &str,
        options: &skep_k8s_client::WatchOptions,
    ) -> Result<RawWatch, skep_k8s_client::ApiError> {
        let mut options = watch_options(options).map_err(failed)?;
        if !self.watches_by_label {
            options.labels = LabelSelector::default();
        }
        let namespace = scope(kind, namespace);
        let watch = self
            .api
            .watch(&gvr(kind), namespace.as_deref(), &options)
            .map_err(failed)?;
        let events = stream::unfold(watch, |mut watch| async move {
            let event = watch.next().await?;
            let change = match event.kind {
                WatchKind::Added => Change::Added,
                WatchKind::Modified => Change::Modified,
                WatchKind::Deleted => Change::Deleted,
                WatchKind::Bookmark => {
                    let end = ["metadata", "annotations", "k8s.io/initial-events-end"];
                    let bookmark = RawEvent::Bookmark {
                        resource_version: object::resource_version(&event.object).into(),
                        initial_events_end: object::text(&event.object, &end) == "true",
                    };
                    return Some((Ok(bookmark), watch));
                }
                WatchKind::Error => {
                    let code = event.object.get("code").and_then(Value::as_u64).unwrap_or(500);
                    let status = Status::new(
                        u16::try_from(code).unwrap_or(500),
                        object::text(&event.object, &["reason"]),
                        object::text(&event.object, &["message"]),
                    );
                    return Some((Err(skep_k8s_client::ApiError::Status(status)), watch));
                }
            };
            Some((Ok(RawEvent::Object(change, raw(event.object))), watch))
        });
        Ok(events.boxed())
    }

    async fn get(
        &self,
        kind: &Kind,
        namespace: &str,
        name: &str,
    ) -> Result<RawObject, skep_k8s_client::ApiError> {
        self.api.get(&gvr(kind), namespace, name).map(raw).map_err(failed)
    }

    async fn create(
        &self,
        kind: &Kind,
        namespace: &str,
        object: Value,
        options: &skep_k8s_client::WriteOptions,
    ) -> Result<RawObject, skep_k8s_client::ApiError> {
        // As over HTTP, a token is created at a path below its account.
        if let Some(account) = token_of(kind) {
            let made = self.api.request_token(namespace, account, object);
            return made.map(|token| raw(Arc::new(token))).map_err(failed);
        }
        let written = self
            .api
            .create(&gvr(kind), namespace, object, &write_options(options));
        written.map(|w| raw(w.object)).map_err(failed)
    }

    async fn update(
        &self,
        kind: &Kind,
        namespace: &str,
        subresource: skep_k8s_client::Subresource,
        object: Value,
        options: &skep_k8s_client::WriteOptions,
    ) -> Result<RawObject, skep_k8s_client::ApiError> {
        let name = object::name(&object).to_owned();
        let options = write_options(options);
        let written = self
            .api
            .update(&gvr(kind), namespace, &name, part(subresource), object, &options);
        written.map(|w| raw(w.object)).map_err(failed)
    }

    async fn patch(
        &self,
        kind: &Kind,
        namespace: &str,
        name: &str,
        subresource: skep_k8s_client::Subresource,
        patch: &skep_k8s_client::Patch,
        options: &skep_k8s_client::WriteOptions,
    ) -> Result<RawObject, skep_k8s_client::ApiError> {
        let patch = match patch {
            skep_k8s_client::Patch::Merge(value) => Patch::Merge(value.clone()),
            skep_k8s_client::Patch::Json(value) => Patch::Json(value.clone()),
            skep_k8s_client::Patch::Strategic(value) => Patch::Strategic(value.clone()),
            skep_k8s_client::Patch::Apply(value) => Patch::Apply(value.clone()),
        };
        let options = write_options(options);
        let written = self
            .api
            .patch(&gvr(kind), namespace, name, part(subresource), &patch, &options);
        written.map(|w| raw(w.object)).map_err(failed)
    }

    async fn delete(
        &self,
        kind: &Kind,
        namespace: &str,
        name: &str,
        options: &skep_k8s_client::DeleteOptions,
    ) -> Result<(), skep_k8s_client::ApiError> {
        let text = |s: &skep_k8s_types::slim::Str| (!s.is_empty()).then(|| s.to_string());
        let options = DeleteOptions {
            grace_seconds: options
                .grace_period
                .map(|g| i64::try_from(g.as_secs()).unwrap_or(i64::MAX)),
            uid: text(&options.preconditions.uid),
            resource_version: text(&options.preconditions.resource_version),
            propagation: Propagation::parse(&options.propagation),
            dry_run: false,
        };
        self.api
            .delete(&gvr(kind), namespace, name, &options)
            .map(drop)
            .map_err(failed)
    }
}
