// SPDX-License-Identifier: Apache-2.0

//! Compact Kubernetes object types, their kinds and selectors.
//!
//! - [`slim`]: Kubernetes objects with only the fields that Skep reads;
//! - [`Kind`], [`Resource`]: group, version and names of an object type;
//! - [`RawObject`]: an object as it arrived; [`RawObject::decode`] names object and field in its error;
//! - [`selector`]: label and field selectors.
//!
//! No client, no hive, no table: light enough for every crate.

mod decode;
mod kind;
pub mod selector;
pub mod slim;

pub use decode::{DecodeError, ObjectKey, RawObject};
pub use kind::{Kind, Resource};

#[cfg(test)]
mod tests;
