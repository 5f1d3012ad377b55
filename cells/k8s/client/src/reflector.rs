// SPDX-License-Identifier: Apache-2.0

//! Kubernetes objects → rows of a table.
//!
//! A [`Reflector`] follows a source and keeps rows in step with its objects. It commits as soon as nothing more is
//! waiting: one change is one transaction when things are calm, thousands share one under load. A list replaces all rows
//! that came from the same reflector, in one transaction, which also marks the table's initialiser done.

mod batch;
mod config;
mod job;

pub use config::{Reflector, TransformError};
pub use job::ReflectError;

#[cfg(test)]
mod tests;
