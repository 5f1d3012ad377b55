// SPDX-License-Identifier: Apache-2.0

//! Parameters of requests.

use std::time::Duration;

use serde_json::Value;
use skep_k8s_types::selector::{FieldSelector, Selector};
use skep_k8s_types::slim::Str;

/// How a list matches its resource version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResourceVersionMatch {
    /// This version or a newer one.
    NotOlderThan,
    /// This version.
    Exact,
}

/// Parameters of a list. The default lists everything, as of now, in one page.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ListOptions {
    /// Label selector.
    pub labels: Selector,
    /// Field selector.
    pub fields: FieldSelector,
    /// Page size, in objects; 0 for one page.
    pub limit: u32,
    /// Continue token of the previous page; empty for the first page.
    pub continue_token: String,
    /// Resource version to list; empty for the newest.
    pub resource_version: Str,
    /// How `resource_version` is matched.
    pub resource_version_match: Option<ResourceVersionMatch>,
}

/// Parameters of a watch.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct WatchOptions {
    /// Label selector.
    pub labels: Selector,
    /// Field selector.
    pub fields: FieldSelector,
    /// Watches changes after this version; if empty, all objects as added, then their changes.
    pub resource_version: Str,
    /// Whether the server may send bookmarks.
    pub bookmarks: bool,
    /// Whether the watch starts with all present objects and a bookmark at their end.
    pub initial_events: bool,
    /// Time after which the server ends the watch.
    pub timeout: Option<Duration>,
}

/// Parameters of create, update and patch.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct WriteOptions {
    /// Field manager; empty for the client's default.
    pub field_manager: String,
    /// Dry run: validates, stores nothing.
    pub dry_run: bool,
    /// Server-side apply: takes over fields of other managers.
    pub force: bool,
}

/// Conditions under which an object may be deleted.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Preconditions {
    /// It has this unique id; empty for any.
    pub uid: Str,
    /// It has this version; empty for any.
    pub resource_version: Str,
}

/// Parameters of delete.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DeleteOptions {
    /// Conditions.
    pub preconditions: Preconditions,
    /// `Background`, `Foreground` or `Orphan`; empty for the kind's default.
    pub propagation: Str,
    /// Grace period, in whole seconds; zero deletes at once, `None` leaves it to the object.
    pub grace_period: Option<Duration>,
}

/// A subresource of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Subresource {
    /// The object itself.
    #[default]
    None,
    /// Its status.
    Status,
}

/// A change of an object.
#[derive(Debug, Clone, PartialEq)]
pub enum Patch {
    /// JSON merge patch (RFC 7386).
    Merge(Value),
    /// JSON patch (RFC 6902).
    Json(Value),
    /// Kubernetes' strategic merge patch; not for custom resources.
    Strategic(Value),
    /// Server-side apply.
    Apply(Value),
}

impl Patch {
    /// Content type of the request.
    pub fn content_type(&self) -> &'static str {
        match self {
            Self::Merge(_) => "application/merge-patch+json",
            Self::Json(_) => "application/json-patch+json",
            Self::Strategic(_) => "application/strategic-merge-patch+json",
            Self::Apply(_) => "application/apply-patch+yaml",
        }
    }

    /// Body of the request.
    pub fn body(&self) -> &Value {
        match self {
            Self::Merge(body) | Self::Json(body) | Self::Strategic(body) | Self::Apply(body) => body,
        }
    }
}
