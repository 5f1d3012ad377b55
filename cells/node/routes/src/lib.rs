// SPDX-License-Identifier: Apache-2.0

//! Routes of the kernel to the pods of other nodes.
//!
//! With a tunnel, networks of other nodes' pods are routed to `cilium_host`, whose program encapsulates (`tunnel.rs`). With
//! native routing and `auto-direct-node-routes`, they are routed to the nodes of the same network (`direct.rs`). Routes that
//! other programs made are left alone. The next hops to other nodes are discovered (`neighbors.rs`).

mod cell;
mod direct;
mod neighbors;
mod routes;
mod tunnel;

pub use cell::cell;

hive::catalogue!(cell);
