// SPDX-License-Identifier: Apache-2.0

//! Leader election by a Lease, and the scope of what only the leader runs.
//!
//! - [`scope`]: the cells that only the leader runs. They start when this process becomes the leader, and stop before it
//!   releases the lease.
//! - [`cell`]: the election. A leader that cannot renew its lease ends the process at once, through [`Process`]: another
//!   one may lead already, and whatever a slow stop still wrote would be in its way.
//! - [`Election`]: the state machine on the Lease, without the hive.
//!
//! Leases are compatible with those of Cilium's operator: both can be replicas of one deployment during a migration.

mod cell;
mod changes;
mod config;
mod election;
mod lease;

pub use cell::{ElectionClient, Leader, Process, cell, scope};
pub use config::Config;
pub use election::{Attempt, Election, ElectionError, Lost, Settings};
pub use lease::Record;

hive::catalogue!(cell);

#[cfg(test)]
mod tests;
