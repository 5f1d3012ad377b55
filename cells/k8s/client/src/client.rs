// SPDX-License-Identifier: Apache-2.0

//! The traits of clients, and the client without a cluster.

use std::fmt;

use async_trait::async_trait;
use futures::stream::BoxStream;
use serde_json::Value;
use skep_k8s_types::slim::Str;
use skep_k8s_types::{Kind, RawObject};

use crate::error::ApiError;
use crate::event::{Page, RawEvent, WatchEvent};
use crate::options::{DeleteOptions, ListOptions, Patch, Subresource, WatchOptions, WriteOptions};

/// Events of a watch, objects not decoded. Ends when the server ends the watch.
pub type RawWatch = BoxStream<'static, Result<RawEvent, ApiError>>;

/// Events of a watch. Ends when the server ends the watch: then watch again from the last resource version.
pub type WatchStream<T> = BoxStream<'static, Result<WatchEvent<T>, ApiError>>;

/// A page of a list, objects not decoded.
#[derive(Debug, Clone)]
pub struct RawPage {
    /// Objects, in the order of the server.
    pub items: Vec<RawObject>,
    /// Resource version of the whole list: where to watch from.
    pub resource_version: Str,
    /// Continue token of the next page; empty for the last page.
    pub continue_token: String,
}

/// Version of an API server.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ServerVersion {
    /// Major number.
    pub major: u32,
    /// Minor number.
    pub minor: u32,
    /// Full text, such as `v1.33.1`.
    pub git_version: String,
    /// Operating system and architecture it is made for, such as `linux/amd64`; empty if the server does not report it.
    pub platform: String,
}

impl fmt::Display for ServerVersion {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}.{}", self.major, self.minor)
    }
}

/// A connection to an API server, for all kinds of objects. [`Api`](crate::Api) is a typed view of it.
///
/// In all functions an empty `namespace` means a cluster-scoped object or, for lists and watches, all namespaces.
/// A client implements at least lists, watches and discovery; by default the others fail with [`ApiError::Disabled`].
#[expect(unused_variables, reason = "the names document the parameters")]
#[async_trait]
pub trait Client: Send + Sync {
    /// Whether a cluster is configured. If not, every other function fails with [`ApiError::Disabled`].
    fn is_enabled(&self) -> bool;

    /// Waits until a lost server answers again: a backoff ends then.
    async fn recovered(&self) {
        std::future::pending().await
    }

    /// Version of the server.
    async fn server_version(&self) -> Result<ServerVersion, ApiError> {
        Err(ApiError::Disabled)
    }

    /// Discovers the kinds that the server serves.
    async fn kinds(&self) -> Result<Vec<Kind>, ApiError>;

    /// Lists objects, a page at a time.
    async fn list(&self, kind: &Kind, namespace: &str, options: &ListOptions) -> Result<RawPage, ApiError>;

    /// Watches objects. An error event of the server (such as 410 Gone) is an item of the stream, and its last.
    async fn watch(&self, kind: &Kind, namespace: &str, options: &WatchOptions)
    -> Result<RawWatch, ApiError>;

    /// Reads one object.
    async fn get(&self, kind: &Kind, namespace: &str, name: &str) -> Result<RawObject, ApiError> {
        Err(ApiError::Disabled)
    }

    /// Creates an object; returns it as stored.
    async fn create(
        &self,
        kind: &Kind,
        namespace: &str,
        object: Value,
        options: &WriteOptions,
    ) -> Result<RawObject, ApiError> {
        Err(ApiError::Disabled)
    }

    /// Replaces an object, or its status only; returns it as stored. If the object has a resource version it
    /// must be the current one.
    async fn update(
        &self,
        kind: &Kind,
        namespace: &str,
        subresource: Subresource,
        object: Value,
        options: &WriteOptions,
    ) -> Result<RawObject, ApiError> {
        Err(ApiError::Disabled)
    }

    /// Changes an object, or its status only; returns it as stored.
    async fn patch(
        &self,
        kind: &Kind,
        namespace: &str,
        name: &str,
        subresource: Subresource,
        patch: &Patch,
        options: &WriteOptions,
    ) -> Result<RawObject, ApiError> {
        Err(ApiError::Disabled)
    }

    /// Deletes an object.
    async fn delete(
        &self,
        kind: &Kind,
        namespace: &str,
        name: &str,
        options: &DeleteOptions,
    ) -> Result<(), ApiError> {
        Err(ApiError::Disabled)
    }
}

/// A source of objects of one type, for watchers and reflectors.
#[async_trait]
pub trait ListerWatcher<T>: Send + Sync {
    /// Lists a page of the newest state; `continue_token` is empty for the first page.
    async fn list(&self, continue_token: &str) -> Result<Page<T>, ApiError>;

    /// Watches changes after the resource version of a list or an event.
    async fn watch(&self, resource_version: &str) -> Result<WatchStream<T>, ApiError>;

    /// As [`Client::recovered`].
    async fn recovered(&self) {
        std::future::pending().await
    }
}

/// The client where there is no cluster.
#[derive(Debug, Clone, Copy, Default)]
pub struct DisabledClient;

#[async_trait]
impl Client for DisabledClient {
    fn is_enabled(&self) -> bool {
        false
    }

    async fn kinds(&self) -> Result<Vec<Kind>, ApiError> {
        Err(ApiError::Disabled)
    }

    async fn list(&self, _: &Kind, _: &str, _: &ListOptions) -> Result<RawPage, ApiError> {
        Err(ApiError::Disabled)
    }

    async fn watch(&self, _: &Kind, _: &str, _: &WatchOptions) -> Result<RawWatch, ApiError> {
        Err(ApiError::Disabled)
    }
}
