// SPDX-License-Identifier: Apache-2.0

//! What is known of a watcher.

use std::collections::BTreeMap;
use std::sync::Arc;

use skep_k8s_types::{DecodeError, ObjectKey, Resource};

use crate::error::ApiError;
use crate::event::ObjectEvent;
use crate::watcher::WatcherEvent;

/// What the events of a [`watcher`](crate::watcher()) say of its connection, and of objects that cannot be used; for health.
#[derive(Debug, Default)]
pub struct WatchState {
    is_listed: bool,
    failing: Option<Arc<ApiError>>,
    invalid: BTreeMap<ObjectKey, DecodeError>,
}

impl WatchState {
    /// Takes in an event.
    pub fn note<T: Resource>(&mut self, event: &WatcherEvent<T>) {
        match event {
            WatcherEvent::Failing(error) => self.failing = Some(error.clone()),
            WatcherEvent::Working => self.failing = None,
            WatcherEvent::Replaced { invalid, .. } => {
                *self = Self {
                    is_listed: true,
                    ..Self::default()
                };
                invalid.iter().for_each(|error| self.undecodable(error));
            }
            WatcherEvent::Object(ObjectEvent::Applied(object)) => {
                self.invalid.remove(&ObjectKey::of(&**object));
            }
            WatcherEvent::Object(ObjectEvent::Deleted(key, _)) => _ = self.invalid.remove(key),
            WatcherEvent::Object(ObjectEvent::Invalid(error)) => self.undecodable(error),
            WatcherEvent::InitPage { .. } | WatcherEvent::InitDone => {}
        }
    }

    fn undecodable(&mut self, error: &DecodeError) {
        self.invalid.insert((*error.object).clone(), error.clone());
    }

    /// Whether all objects were reported once.
    pub fn is_listed(&self) -> bool {
        self.is_listed
    }

    /// Why events may be missing now.
    pub fn failing(&self) -> Option<&Arc<ApiError>> {
        self.failing.as_ref()
    }

    /// Objects that cannot be decoded: what they said before counts.
    pub fn invalid(&self) -> &BTreeMap<ObjectKey, DecodeError> {
        &self.invalid
    }
}
