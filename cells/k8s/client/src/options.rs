// SPDX-License-Identifier: Apache-2.0

//! Parameters of requests.

use std::time::Duration;

use serde_json::Value;
use skep_k8s_types::selector::{FieldSelector, Selector};
use skep_k8s_types::slim::Str;

/// How the resource version of a list is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResourceVersionMatch {
    /// This one or a newer one.
    NotOlderThan,
    /// This one.
    Exact,
}

/// Parameters of a list. The default lists everything, as of now, in one page.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ListOptions {
    /// Objects with these labels.
    pub labels: Selector,
    /// Objects with these fields.
    pub fields: FieldSelector,
    /// Objects a page; 0 for all.
    pub limit: u32,
    /// Where the last page ended; empty for the first page.
    pub continue_token: String,
    /// State to list; empty for the newest.
    pub resource_version: Str,
    /// How `resource_version` is meant.
    pub resource_version_match: Option<ResourceVersionMatch>,
}

/// Parameters of a watch.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct WatchOptions {
    /// Objects with these labels.
    pub labels: Selector,
    /// Objects with these fields.
    pub fields: FieldSelector,
    /// Changes after this version; empty for from now on, with all present objects as added.
    pub resource_version: Str,
    /// Whether the server may send bookmarks.
    pub bookmarks: bool,
    /// Whether the watch starts with all present objects and a bookmark at their end.
    pub initial_events: bool,
    /// After what time the server should end the watch.
    pub timeout: Option<Duration>,
}

/// Parameters of create, update and patch.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct WriteOptions {
    /// Who writes, for field ownership; empty for the client's default.
    pub field_manager: String,
    /// Check only, store nothing.
    pub dry_run: bool,
    /// Server-side apply: take over fields that others own.
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
    /// Time between the announcement and the removal, whole seconds; zero removes at once, none leaves it to
    /// the object.
    pub grace_period: Option<Duration>,
}

/// A part of an object with a path of its own.
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
