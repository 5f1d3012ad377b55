// SPDX-License-Identifier: Apache-2.0

//! The one runtime of controllers.
//!
//! A controller is what it watches, which keys a change of an object affects, and what it does about a key:
//!
//! - [`Store`] holds the last valid state of the objects of a kind;
//! - [`Watches::affected`] maps a [`Change`] of an object to keys;
//! - [`Reconciler::reconcile`] computes from the stores what must be written for a key, and returns the requests as a future.
//!
//! The runtime does the rest: it begins when all sources have delivered their lists, takes a key at most once at a time and
//! several keys at once, repeats what failed with a backoff, pauses when the API server does not answer, reports
//! `workqueue_*` metrics and health, and names invalid objects there.

mod error;
mod queue;
mod runtime;
mod store;
#[cfg(test)]
mod tests;

pub use error::{Failure, REQUEST_TIMEOUT, RequestError, Retry, request};
pub use runtime::{Controller, Reconciler, Watches, Work};
pub use store::{Change, Store};
