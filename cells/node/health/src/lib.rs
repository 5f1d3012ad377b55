// SPDX-License-Identifier: Apache-2.0

//! Probes of the connectivity between nodes, as Cilium's `cilium-health`.
//!
//! - [`Prober`]: ICMP echo requests and HTTP requests to the addresses of all nodes and of their health endpoints, spread
//!   evenly over a round whose length grows with the number of addresses (`probe.rs`, `round.rs`);
//! - the responder (`responder.rs`): `GET /hello` at the addresses of this node. [`hello`] is that of a health endpoint, and
//!   [`ask`] its client;
//! - `/v1beta` on the unix socket `health.sock`, beside that of the agent (`api.rs`);
//! - metrics, and the part `cluster` of the status.

mod api;
mod cell;
mod icmp;
mod metrics;
mod probe;
mod prober;
mod responder;
mod round;
#[cfg(test)]
mod tests;

pub use cell::cell;
pub use metrics::HealthMetrics;
pub use probe::ask;
pub use prober::Prober;
pub use responder::hello;

hive::catalogue!(cell);
