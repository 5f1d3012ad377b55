// SPDX-License-Identifier: Apache-2.0

//! What requests can ask for.

use std::time::Duration;

use crate::selector::{FieldSelector, LabelSelector};

/// Which list is good enough.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum VersionMatch {
    /// Any that is not older.
    #[default]
    NotOlderThan,
    /// Exactly that one.
    Exact,
}

/// Options of lists and watches.
#[derive(Clone, Debug, Default)]
pub struct ListOptions {
    /// Only objects with these labels.
    pub labels: LabelSelector,
    /// Only objects with these fields.
    pub fields: FieldSelector,
    /// At most so many objects; 0 = all.
    pub limit: usize,
    /// Where the next page of a list starts; empty for the first.
    pub continue_token: String,
    /// Resource version of the request; `None` if there was none, which is not the same as 0.
    pub resource_version: Option<u64>,
    /// How to read the resource version; `None` if the request did not say.
    pub version_match: Option<VersionMatch>,
    /// Watches: send bookmarks.
    pub bookmarks: bool,
    /// Watches: send all objects first, then a bookmark that says so.
    pub send_initial_events: bool,
    /// Watches: end after this time.
    pub timeout: Option<Duration>,
}

/// What happens to fields that the kind does not have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FieldValidation {
    /// They are dropped silently.
    Ignore,
    /// They are dropped with a warning.
    #[default]
    Warn,
    /// The request fails.
    Strict,
}

/// Options of writes.
#[derive(Clone, Debug, Default)]
pub struct WriteOptions {
    /// Who writes, for the owners of fields. Empty: unknown.
    pub field_manager: String,
    /// Do everything but store the result.
    pub dry_run: bool,
    /// What happens to unknown fields.
    pub validation: FieldValidation,
    /// Server-side apply: take fields from other owners.
    pub force: bool,
}

/// What happens to the objects that a deleted object owns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Propagation {
    /// They are deleted afterwards.
    Background,
    /// They are deleted first.
    Foreground,
    /// They stay, without their owner.
    Orphan,
}

impl Propagation {
    /// Finalizer of objects that wait for the deletion of what they own.
    pub const FOREGROUND_FINALIZER: &'static str = "foregroundDeletion";
    /// Finalizer of objects that wait until what they own has forgotten them.
    pub const ORPHAN_FINALIZER: &'static str = "orphan";

    /// Reads `Background`, `Foreground` or `Orphan`.
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "Background" => Some(Propagation::Background),
            "Foreground" => Some(Propagation::Foreground),
            "Orphan" => Some(Propagation::Orphan),
            _ => None,
        }
    }

    /// The finalizer that an object gets when it is deleted this way.
    pub fn finalizer(self) -> Option<&'static str> {
        match self {
            Propagation::Background => None,
            Propagation::Foreground => Some(Self::FOREGROUND_FINALIZER),
            Propagation::Orphan => Some(Self::ORPHAN_FINALIZER),
        }
    }
}

/// Options of deletions.
#[derive(Clone, Debug, Default)]
pub struct DeleteOptions {
    /// Seconds that the object may take to end; `None` = what the object says.
    pub grace_seconds: Option<i64>,
    /// Delete only the object with this uid.
    pub uid: Option<String>,
    /// Delete only this version of the object.
    pub resource_version: Option<String>,
    /// What happens to what the object owns; `None` = what its finalizers say, else in the background. Somebody has to
    /// do it: see `skep_k8s_apiserver::garbage_collector_cell`.
    pub propagation: Option<Propagation>,
    /// Do everything but delete.
    pub dry_run: bool,
}
