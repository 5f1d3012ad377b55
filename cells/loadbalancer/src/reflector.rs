// SPDX-License-Identifier: Apache-2.0

//! Sources of services: the Kubernetes API server, host ports of pods, a state file.

mod batch;
mod document;
mod slices;

pub use batch::{Batch, Changed, Latest, MAX_BATCH};
pub use document::{Document, DocumentError, Format, UnknownFormat};
