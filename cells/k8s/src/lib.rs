// SPDX-License-Identifier: Apache-2.0

//! Kubernetes client, compact object types, reflectors into tables.
//!
//! Without features this crate is only types and traits, light enough for every cell:
//!
//! - [`slim`]: Kubernetes objects with only the fields that somebody reads;
//! - [`Kind`], [`Resource`]: what an object type is called on the wire;
//! - [`Client`], [`Api`], [`ListerWatcher`]: reading, watching and writing objects, whatever is behind.

mod api;
mod client;
mod decode;
mod error;
mod event;
mod kind;
mod options;
#[cfg(feature = "client")]
pub mod remote;
pub mod selector;
pub mod slim;

pub use api::Api;
pub use client::{Client, DisabledClient, ListerWatcher, RawPage, RawWatch, WatchStream};
pub use decode::{DecodeError, ObjectKey, RawObject};
pub use error::{ApiError, Status};
pub use event::{Change, Invalid, Page, RawEvent, WatchEvent};
pub use kind::{Kind, Resource, ServerVersion};
pub use options::{
    DeleteOptions, ListOptions, Patch, Preconditions, ResourceVersionMatch, Subresource, WatchOptions,
    WriteOptions,
};

#[cfg(test)]
mod tests;
