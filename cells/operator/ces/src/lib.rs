// SPDX-License-Identifier: Apache-2.0

//! Gathers CiliumEndpoints in CiliumEndpointSlices, so that agents watch fewer and smaller objects.
//!
//! A slice has endpoints of one namespace, up to a limit. A new endpoint goes to the fullest slice that has room and never
//! moves to another one. Slices that a leader finds are kept. Changes wait half a second for others of the same slice; writes
//! are limited in rate by the number of nodes, those of priority namespaces go first.
//!
//! With `ces-controller-mode: slim` endpoints are made of pods, identities and nodes (`slim.rs`).
//!
//! Read first: `slices.rs`, then `controller.rs`.

mod cell;
mod config;
mod controller;
mod metrics;
mod objects;
mod slices;
mod slim;
#[cfg(test)]
mod tests;
mod write;

pub use cell::cell;
pub use config::{Config, ControllerMode, RateLimit, RateLimits, RateLimitsError, UnknownMode};

hive::catalogue!(cell);
