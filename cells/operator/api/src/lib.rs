// SPDX-License-Identifier: Apache-2.0

//! API of the operator: whether it is healthy.
//!
//! `GET /healthz` and `GET /v1/healthz` at `operator-api-serve-addr` ask every [`HealthProbe`] that cells bring. A replica
//! that does not lead is healthy, too.

mod cell;
mod config;
mod health;
mod server;

pub use cell::cell;
pub use config::Config;
pub use health::{HealthProbe, Unhealthy};
pub use server::{Listening, ServeError};

hive::catalogue!(cell);

#[cfg(test)]
mod tests;
