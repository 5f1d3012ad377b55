// SPDX-License-Identifier: Apache-2.0

//! The client of a real API server (feature `remote`).
//!
//! [`RemoteClient`] implements [`Client`](crate::Client) over HTTP. It knows one or several addresses of the same
//! cluster; when the one in use stops answering, it moves to the next and remembers it in a file. All connections are
//! dropped at that moment, so that no watch waits on a dead one.
//!
//! [`ClientMetrics`] are about the requests of all clients of a process.

mod cell;
mod config;
mod connection;
mod discovery;
mod lines;
mod metrics;
mod request;
mod target;
mod token;

pub use cell::{cell, heartbeat, operator_cell};
pub use config::{Config, LimitConfig, OperatorLimitConfig, RequestLimit};
pub use connection::{ConnectError, RemoteClient, Settings};
pub use metrics::ClientMetrics;
pub use target::{Target, TargetError};

hive::catalogue!(cell);
hive::catalogue!(operator_cell);

#[cfg(test)]
mod tests;
