// SPDX-License-Identifier: Apache-2.0

//! Kubernetes client, compact object types, reflectors into tables.
//!
//! Without features this crate is only types and traits, light enough for every cell:
//!
//! - [`slim`]: Kubernetes objects with only the fields that somebody reads;
//! - [`Kind`], [`Resource`]: what an object type is called on the wire;
//! - [`Client`], [`Api`], [`ListerWatcher`]: reading, watching and writing objects, whatever is behind.
//!
//! Feature `hive` adds what brings objects into tables: `watcher` (an endless stream of changes), `reflector`,
//! `tables` (namespaces and local pods), `readiness`, `node_name`. Feature `api` adds `status`, the part of the agent's status. Feature `client` adds `remote`, the client of a real
//! API server.

mod api;
mod client;
#[cfg(feature = "hive")]
pub mod clock;
mod decode;
mod error;
mod event;
mod kind;
#[cfg(feature = "hive")]
pub mod node_name;
mod options;
#[cfg(feature = "hive")]
pub mod readiness;
#[cfg(feature = "hive")]
pub mod reflector;
#[cfg(feature = "client")]
pub mod remote;
pub mod selector;
pub mod slim;
#[cfg(feature = "api")]
pub mod status;
#[cfg(feature = "hive")]
pub mod tables;
#[cfg(feature = "hive")]
mod watcher;

pub use api::Api;
pub use client::{Client, DisabledClient, ListerWatcher, RawPage, RawWatch, WatchStream};
pub use decode::{DecodeError, ObjectKey, RawObject};
pub use error::{ApiError, Status};
pub use event::{Change, ObjectEvent, Page, RawEvent, WatchEvent};
pub use kind::{Kind, Resource, ServerVersion};
pub use options::{
    DeleteOptions, ListOptions, Patch, Preconditions, ResourceVersionMatch, Subresource, WatchOptions,
    WriteOptions,
};
#[cfg(feature = "hive")]
pub use watcher::{Backoff, WatcherEvent, watcher, watcher_in_pages};

#[cfg(test)]
mod tests;
