// SPDX-License-Identifier: Apache-2.0

//! LB-IPAM: addresses of CiliumLoadBalancerIPPools for Services of type LoadBalancer.
//!
//! - [`allocate`]: which service has which address, a function of [`Pools`] and [`Claim`]s; no I/O, no state;
//! - [`cell()`]: watches pools and Services and writes the status of both, for the leader among operators.
//!
//! Whoever has an address keeps it as long as a pool has it for them; what Services have in their status is known before
//! anything is allocated. Services share an address by the sharing key in their annotations.

pub mod address;
pub mod allocator;
mod cell;
mod config;
mod controller;
mod engine;
mod metrics;
mod object;
pub mod pool;
pub mod request;
mod status;

pub use allocator::{Allocation, Allocations, Claim, Reason, Refusal, allocate};
pub use cell::cell;
pub use config::{Config, Families};
pub use pool::{Pool, Pools};
pub use request::Request;
pub use status::{CONFLICT, INVALID, SATISFIED};

hive::catalogue!(cell);

#[cfg(test)]
mod tests;
