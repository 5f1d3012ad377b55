// SPDX-License-Identifier: Apache-2.0

//! Policy maps of endpoints.
//!
//! Input: desired map state of endpoints ([`MapStates`]; without a policy engine [`AllowAll`]). Output: `cilium_policy_v2_<id>`
//! and `skep_policies`, which leads to them, and table `policy-maps`: the policy of endpoint N is realized at revision R.
//! Who has endpoints [requests](PolicyMaps::request) their policies, and attaches programs once they are realized.
//!
//! - Maps are written as differences from what they hold, which is read once for each endpoint: at its first write, after a
//!   failure, and every 15 minutes, when what others changed is repaired.
//! - Writes are in an order in which no moment allows more than the state before or that after (`order.rs`), for all endpoints of a
//!   round in one [`Transaction`](skep_datapath_maps::transaction::Transaction).
//! - A policy that exceeds its map is an error of its endpoint, whose map has what restricts, and what allows as far as there is room;
//!   with `enable-endpoint-lockdown-on-policy-overflow` its packets are dropped until the policy fits.
//! - `skep_policies` leads to policies that restrict something. The kernel waits for all programs that run when it is
//!   written, for 20 ms and more, once for a round: an endpoint whose policy allows everything says so in its flags and
//!   does not wait for it.
//!
//! Read first: `table.rs`, then `reconciler.rs`.

mod cell;
mod config;
mod map_state;
mod order;
mod reconciler;
mod source;
mod table;
#[cfg(test)]
mod tests;

pub use cell::cell;
pub use config::Config;
pub use map_state::{Change, MapState};
pub use reconciler::{PolicyOps, PolicyReconciler};
pub use source::{AllowAll, Desired, MapStates};
pub use table::{EndpointPolicy, PolicyMaps, Realized};

hive::catalogue!(cell);
