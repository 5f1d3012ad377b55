// SPDX-License-Identifier: Apache-2.0

//! What lists and watches deliver.

use std::sync::Arc;

use crate::decode::{DecodeError, ObjectKey, RawObject};
use crate::kind::Resource;
use crate::slim::Str;

/// What happened to an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// It is new, or seen for the first time.
    Added,
    /// It has changed.
    Modified,
    /// It is gone.
    Deleted,
}

/// An event of a watch, objects not decoded.
#[derive(Debug, Clone)]
pub enum RawEvent {
    /// An object has changed. For deletions: its last state.
    Object(Change, RawObject),
    /// Nothing has changed up to this resource version.
    Bookmark {
        /// The resource version.
        resource_version: Str,
        /// Whether all objects that were there when the watch started have been delivered.
        initial_events_end: bool,
    },
}

/// An event of a watch.
#[derive(Debug, Clone)]
pub enum WatchEvent<T> {
    /// An object is new, or seen for the first time.
    Added(Arc<T>),
    /// An object has changed.
    Modified(Arc<T>),
    /// An object is gone; its last state.
    Deleted(Arc<T>),
    /// Nothing has changed up to this resource version.
    Bookmark {
        /// The resource version.
        resource_version: Str,
        /// Whether all objects that were there when the watch started have been delivered.
        initial_events_end: bool,
    },
    /// An object has changed and cannot be decoded.
    Invalid(Invalid),
}

/// An object that cannot be decoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Invalid {
    /// What happened to it.
    pub change: Change,
    /// Which object it is and what is wrong with it.
    pub error: DecodeError,
}

impl Invalid {
    /// Which object it is.
    pub fn key(&self) -> &ObjectKey {
        &self.error.object
    }
}

impl<T: Resource> WatchEvent<T> {
    /// Decodes an event.
    pub fn decode(raw: RawEvent) -> Self {
        match raw {
            RawEvent::Bookmark {
                resource_version,
                initial_events_end,
            } => Self::Bookmark {
                resource_version,
                initial_events_end,
            },
            RawEvent::Object(change, object) => match (object.decode(), change) {
                (Ok(object), Change::Added) => Self::Added(object),
                (Ok(object), Change::Modified) => Self::Modified(object),
                (Ok(object), Change::Deleted) => Self::Deleted(object),
                (Err(error), change) => Self::Invalid(Invalid { change, error }),
            },
        }
    }

    /// Resource version after this event; empty if unknown.
    pub fn resource_version(&self) -> &Str {
        match self {
            Self::Added(object) | Self::Modified(object) | Self::Deleted(object) => {
                &object.metadata().resource_version
            }
            Self::Bookmark { resource_version, .. } => resource_version,
            Self::Invalid(invalid) => &invalid.error.resource_version,
        }
    }
}

/// A part of a list.
#[derive(Debug, Clone)]
pub struct Page<T> {
    /// Objects, in the order of the server.
    pub items: Vec<Arc<T>>,
    /// Objects that could not be decoded.
    pub invalid: Vec<DecodeError>,
    /// Version of the whole list: a watch from here misses nothing.
    pub resource_version: Str,
    /// Where the next page starts; empty for the last.
    pub continue_token: String,
}
