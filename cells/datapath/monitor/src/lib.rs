// SPDX-License-Identifier: Apache-2.0

//! The monitor: events of the BPF programs and of the agent, sent to every listener.
//!
//! Programs write events to the rings of `cilium_events`, one a CPU. [`cell`] reads them while there are listeners, and sends
//! them to all listeners of a unix socket, in the protocol of Cilium's monitor (`skep-datapath-monitor-events`): `skep monitor`,
//! `cilium-dbg monitor`. Without listeners no ring is open, and programs write nothing.
//!
//! A slow listener loses events and gets their number; neither the other listeners nor the rings wait for it.
//!
//! [`Monitor`] takes events of the agent from other cells.

#[cfg(feature = "api")]
pub mod api;
mod cell;
mod config;
mod listeners;
mod metrics;
mod monitor;
mod ring;
mod server;

pub use cell::cell;
pub use config::Config;
pub use monitor::Monitor;
pub use ring::RingStatus;
pub use server::ServeError;

hive::catalogue!(cell);
