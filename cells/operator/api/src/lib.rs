// SPDX-License-Identifier: Apache-2.0

//! API of the operator: whether it is healthy, and how the remote clusters are.
//!
//! `GET /healthz` and `GET /v1/healthz` at `operator-api-serve-addr` ask every [`HealthProbe`] that cells bring. A replica
//! that does not lead is healthy, too. `GET /v1/cluster` is answered with the status that the leader gives
//! [`RemoteClusters`]; by other replicas with none.

mod cell;
mod clusters;
mod config;
mod health;
mod server;

pub use cell::cell;
pub use clusters::RemoteClusters;
pub use config::Config;
pub use health::{HealthProbe, Unhealthy};
pub use server::{Listening, ServeError};

hive::catalogue!(cell);

#[cfg(test)]
mod tests;
