// SPDX-License-Identifier: Apache-2.0

//! Garbage collection of connection tracking and NAT.
//!
//! Programs at interfaces write an entry for each flow, and never delete it. [`cell`] removes the entries of flows that have
//! ended, with how they were translated: every so often, at once when programs report that a map is full, and when others ask
//! for it. [`Conntrack`] is what they ask.
//!
//! The work is done inside the kernel (`skep_bpf_programs::FlowIterators`), or by batch operations where the kernel has no
//! iterators. Only counters come to user space.

mod cell;
mod collectors;
mod config;
mod conntrack;
mod interval;
mod metrics;
mod ports;
mod signals;
#[cfg(test)]
mod tests;

pub use cell::cell;
pub use collectors::{CollectorSource, SourceError};
pub use config::Config;
pub use conntrack::{Conntrack, ConntrackError, FullMap, Summary};
pub use ports::{PortsError, TakenPorts};
pub use signals::SignalError;

hive::catalogue!(cell);
