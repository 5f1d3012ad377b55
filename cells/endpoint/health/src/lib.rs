// SPDX-License-Identifier: Apache-2.0

//! The health endpoint of the node: an endpoint with identity `reserved:health` in a network namespace of its own, that
//! answers the probes of other nodes as a pod would.
//!
//! The namespace is pinned in the state directory and outlives the agent, as the endpoint does; both are created again
//! when they are broken. The agent answers inside of it by a socket: no other process runs there.

mod cell;
mod endpoint;
mod network;

pub use cell::cell;

hive::catalogue!(cell);
