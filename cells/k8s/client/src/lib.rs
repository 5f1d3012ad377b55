// SPDX-License-Identifier: Apache-2.0

//! Reading, watching and writing Kubernetes objects.
//!
//! - [`Client`]: a connection to an API server, for objects of all kinds; [`Api`] is a typed view of it;
//! - [`ListerWatcher`]: a source of all objects of one type; [`watcher()`] turns it into an endless stream of events,
//!   [`WatchState`] is what they say of the connection.
//!
//! Feature `remote` adds `remote`, the client of a real API server, by kube, and its cell. Feature `api` adds `status`,
//! the part `kubernetes` of the agent's status. Feature `testing` adds `testing`, a client that fails on demand.

#![warn(missing_docs)]

mod api;
mod client;
mod error;
mod event;
mod options;
#[cfg(feature = "remote")]
pub mod remote;
mod state;
#[cfg(feature = "api")]
pub mod status;
#[cfg(feature = "testing")]
pub mod testing;
mod watcher;

/// A kind that is watched with some settings, for the status of the agent: `core/v1::Pods`.
#[derive(Clone, Copy, Debug)]
pub struct WatchedKind(pub &'static str);

pub use api::Api;
pub use client::{Client, DisabledClient, ListerWatcher, RawPage, RawWatch, ServerVersion, WatchStream};
pub use error::{ApiError, Status, StatusDetails};
pub use event::{Change, ObjectEvent, Page, RawEvent, WatchEvent};
pub use options::{
    DeleteOptions, ListOptions, Patch, Preconditions, ResourceVersionMatch, Subresource, WatchOptions,
    WriteOptions,
};
pub use state::WatchState;
pub use watcher::{Backoff, WatcherEvent, watcher, watcher_in_pages};
