// SPDX-License-Identifier: Apache-2.0

//! Two nodes whose network knows no routes to pods: real packets through the programs and a VXLAN interface on each.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod elsewhere;
mod errors;
mod families;
mod hops;
mod ipip;
mod itself;
mod legacy;
mod mtu;
mod network;
mod node;
mod pings;
mod traffic;
mod vlan;
mod ways;
