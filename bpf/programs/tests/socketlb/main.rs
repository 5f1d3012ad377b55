// SPDX-License-Identifier: Apache-2.0

//! The socket programs in the kernel: real calls in a namespace and cgroup of their own.

#![allow(clippy::unwrap_used, reason = "helpers of tests, not only tests, unwrap")]

mod affinity;
mod bind;
mod forward;
mod health;
mod kernels;
mod layout;
mod links;
mod mounts;
mod node_ports;
mod pins;
mod reverse;
mod terminate;
mod trace;
mod world;
