// SPDX-License-Identifier: Apache-2.0

//! Policies of the endpoints of this node.
//!
//! | in | from |
//! |---|---|
//! | objects | table `network-policies` |
//! | identities, with their labels | table `identities` |
//! | endpoints, with their identities | table `policy-maps`: those whose policy was requested |
//! | services that rules name | tables `services` and `backends` |
//! | ports of pods by name | claims in table `ipcache`; of the own endpoint the label of its identity |
//!
//! Out: the desired map state of each endpoint ([`MapStates`](skep_policy_maps::MapStates)), and claims in the ipcache for the networks
//! that rules name. `skep-policy-model` says what rules mean; this crate feeds it.
//!
//! - The networks of an object are claimed, and their identities taken in, before its rules apply. They are given back after its
//!   rules are gone.
//! - An address gets an identity in the ipcache when the maps of all endpoints have what policies say about it.
//! - An object that is invalid keeps the rules that it had; health names it.
//! - Traffic for a proxy that is not there is dropped: only that of DNS is. Health names the endpoints concerned. Who has names
//!   ([`NamePeers`]) hears of their selectors before rules with them apply.
//! - No policy is desired before all objects and identities are listed: after a restart, maps stay as they are until then.
//!
//! Read first: `state.rs`, then `follow.rs`.

#[cfg(feature = "api")]
pub mod api;
mod barrier;
mod cell;
mod computations;
mod config;
mod convert;
mod dns;
mod features;
mod follow;
mod metrics;
mod networks;
mod ports;
mod services;
mod state;
#[cfg(feature = "testing")]
mod suite;
#[cfg(test)]
mod tests;

pub use cell::cell;
pub use computations::PolicyComputation;
pub use config::{AllowLocalhost, Config, PolicyMode};
pub use dns::{DnsRule, NamePeers};
pub use state::Repository;

hive::catalogue!(cell);
