// SPDX-License-Identifier: Apache-2.0

//! Kubernetes objects → rows of tables.
//!
//! A [`Reflector`] lists and watches a source and keeps the rows of a table in sync with its objects. It commits as
//! soon as no event is waiting: one change is one transaction when little happens, thousands share one under load. A
//! list replaces all rows of the reflector in one transaction, which also marks the table's initialiser done.
//!
//! [`Feed`] does the same for a [`Sink`] of another kind: a writer that several sources share.
//!
//! Feature `tables` adds `tables`: namespaces and the pods of this node, as a cell.

#![warn(missing_docs)]

mod batch;
mod reflector;
mod sink;
#[cfg(feature = "tables")]
pub mod tables;

pub use reflector::{ReflectError, Reflector, TransformError};
pub use sink::{Feed, Rejected, Sink, State};
