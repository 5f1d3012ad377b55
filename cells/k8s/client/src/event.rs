// SPDX-License-Identifier: Apache-2.0

//! Pages of lists, events of watches.

use std::sync::Arc;

use skep_k8s_types::slim::Str;
use skep_k8s_types::{DecodeError, ObjectKey, RawObject, Resource};

/// How an object changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// It is new, or seen for the first time.
    Added,
    /// It has changed.
    Modified,
    /// It was deleted.
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

/// A change of one object: the same value from the watch to the transaction that writes it.
#[derive(Debug, Clone)]
pub enum ObjectEvent<T> {
    /// It is new or has changed.
    Applied(Arc<T>),
    /// It was deleted; its last state, if known.
    Deleted(ObjectKey, Option<Arc<T>>),
    /// It is new or has changed, and cannot be decoded: its last valid state stays.
    Invalid(DecodeError),
}

impl<T: Resource> ObjectEvent<T> {
    /// Decodes an event.
    pub fn decode(change: Change, object: RawObject) -> Self {
        match (object.decode(), change) {
            (Ok(object), Change::Added | Change::Modified) => Self::Applied(object),
            (Ok(object), Change::Deleted) => Self::deleted(object),
            (Err(error), Change::Deleted) => Self::Deleted(*error.object, None),
            (Err(error), _) => Self::Invalid(error),
        }
    }

    /// The deletion of an object, with its last state.
    pub fn deleted(object: Arc<T>) -> Self {
        Self::Deleted(ObjectKey::of(&*object), Some(object))
    }

    /// Namespace and name of the object.
    pub fn name(&self) -> (&Str, &Str) {
        match self {
            Self::Applied(object) => (&object.metadata().namespace, &object.metadata().name),
            Self::Deleted(key, _) => (&key.namespace, &key.name),
            Self::Invalid(error) => (&error.object.namespace, &error.object.name),
        }
    }

    /// Key of the object.
    pub fn key(&self) -> ObjectKey {
        let (namespace, name) = self.name();
        ObjectKey {
            namespace: namespace.clone(),
            name: name.clone(),
        }
    }

    /// Resource version after this event; empty if unknown.
    pub fn resource_version(&self) -> &str {
        match self {
            Self::Applied(object) | Self::Deleted(_, Some(object)) => &object.metadata().resource_version,
            Self::Deleted(_, None) => "",
            Self::Invalid(error) => &error.resource_version,
        }
    }
}

/// An event of a watch.
#[derive(Debug, Clone)]
pub enum WatchEvent<T> {
    /// An object has changed.
    Object(ObjectEvent<T>),
    /// Nothing has changed up to this resource version.
    Bookmark {
        /// The resource version.
        resource_version: Str,
        /// Whether all objects that were there when the watch started have been delivered.
        initial_events_end: bool,
    },
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
            RawEvent::Object(change, object) => Self::Object(ObjectEvent::decode(change, object)),
        }
    }

    /// Resource version after this event; empty if unknown.
    pub fn resource_version(&self) -> &str {
        match self {
            Self::Object(event) => event.resource_version(),
            Self::Bookmark { resource_version, .. } => resource_version,
        }
    }
}

/// A page of a list.
#[derive(Debug, Clone)]
pub struct Page<T> {
    /// Objects, in the order of the server.
    pub items: Vec<Arc<T>>,
    /// Objects that could not be decoded.
    pub invalid: Vec<DecodeError>,
    /// Resource version of the whole list: where to watch from.
    pub resource_version: Str,
    /// Continue token of the next page; empty for the last page.
    pub continue_token: String,
}
